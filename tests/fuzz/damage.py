"""Ways to damage a file: its bytes, lines, values, cells, header, or what kind of file it is."""

import copy
import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

NASTY_VALUES: list[Any] = [
    None, True, [], {}, [[]], {"": None}, "", "x", "\0", "\ud800", "é" * 300, "<script>", -1, 0, 1, 10**9, 2**63, 10**50,
    -(10**400), 1e308, -1e308, 5e-324, float("inf"), float("nan"), 1.5, [1, "a"], {"value": "x"}, ["x"] * 50, "1e999",
]  # fmt: skip
NASTY_CELLS = ["", "inf", "-inf", "nan", "-1", "1e308", "-1e308", "1e999", "x", "9" * 400, "0x1f", "1_0", "٣", "\0", '"',
               "0", " 5 ", "1.5", "=1+1", "a,b", "\n", "2" * 18]  # fmt: skip
NASTY_TEXT = [b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b"&a [*a]", b"a: &a {b: *a}", b"- " * 500, b"\xff\xfe\0", b"null",
              b"[]", b"1", b'"x"', b"", b"\n", b"{}", b"!!python/object:os.system x", b"%", b"\t", b"a: b: c",
              b"a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\n" + b"".join(b"c%d: &c%d [*b,*b,*b,*b,*b]\n" % (i, i) for i in range(9))]  # fmt: skip


def mutated(data: bytes, name: str, chance: random.Random) -> bytes:
    kinds: list[Callable[[bytes, random.Random], bytes]] = [_bytes, _cut, _lines, _replaced]
    if name.endswith((".json", ".yaml", ".jsonl")):
        kinds += [_node] * 8
    if name.endswith(".csv"):
        kinds += [_cell] * 8
    if name.endswith(".safetensors"):
        kinds = [_bytes, _cut, _replaced, _header, _header]
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        data = chance.choice(kinds)(data, chance)
    return data


def _bytes(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        if changed:
            changed[chance.randrange(min(len(changed), 4000))] = chance.choice([0, 9, 34, 44, 45, 48, 57, 91, 123, 255])
    return bytes(changed)


def _cut(data: bytes, chance: random.Random) -> bytes:
    at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:at] + data[end:] if chance.random() < 0.5 else data[:at]


def _lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(chance.randrange(len(lines)), lines[at])
        case _:
            chance.shuffle(lines)
    return b"\n".join(lines)


def _replaced(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(NASTY_TEXT)


def _node(data: bytes, chance: random.Random) -> bytes:
    """One value anywhere in the tree becomes another one, of another type or size."""
    lines = data.decode("utf-8", "replace").splitlines()
    try:
        if lines and lines[0].startswith('{"') and len(lines) > 1:  # JSON lines
            at = chance.randrange(len(lines))
            return "\n".join([*lines[:at], json.dumps(_changed(json.loads(lines[at]), chance)), *lines[at + 1 :], ""]).encode()  # fmt: skip
        if data.lstrip()[:1] in (b"{", b"["):
            return json.dumps(_changed(json.loads(data), chance)).encode("utf-8", "surrogatepass")
        return yaml.safe_dump(_changed(yaml.safe_load(data), chance)).encode("utf-8", "surrogatepass")
    except (ValueError, yaml.YAMLError, RecursionError, UnicodeError):
        return _bytes(data, chance)


def _changed(tree: Any, chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return copy.deepcopy(chance.choice(NASTY_VALUES))
    places: list[tuple[Any, Any]] = []
    level = [tree]
    while level and len(places) < 5000:  # what it was before may be a bomb of aliases
        each = level.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else []
        places += [(each, key) for key in keys]
        level += [each[key] for key in keys]
    if places:
        holder, key = chance.choice(places)
        if chance.random() < 0.15 and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(NASTY_VALUES))
    return tree


def _cell(data: bytes, chance: random.Random) -> bytes:
    rows = [line.split(b",") for line in data.split(b"\n")]
    column = chance.randrange(len(rows[0])) if chance.random() < 0.3 else None
    value = chance.choice(NASTY_CELLS).encode()
    for row in rows[1:] if column is not None else [chance.choice(rows)]:
        place = chance.randrange(len(row)) if column is None else column
        if place < len(row):
            row[place] = value
    return b"\n".join(b",".join(row) for row in rows)


def _header(data: bytes, chance: random.Random) -> bytes:
    """The JSON header of a safetensors file: without metadata, with another state, with lengths that lie."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        metadata = header.get("__metadata__") or {}
        sealed = json.loads(metadata.get("state", "{}")).get("state_digest")
        match chance.randrange(5):
            case 0:
                header.pop("__metadata__", None)
            case 1:
                metadata["state"] = json.dumps(chance.choice([v for v in NASTY_VALUES if v == v]))
            case 2:
                metadata["state"] = "[" * 5000
            case 3:
                state = json.loads(metadata.get("state", "{}"))
                metadata["state"] = json.dumps(_changed(state, chance))
            case _:
                header = _changed(header, chance)
        if sealed and chance.random() < 0.7:  # whoever changes a state can make the digest that fits it
            metadata["digest"] = hashlib.sha256(f"{sealed} {metadata['state']}".encode()).hexdigest()
        text = json.dumps(header).encode("utf-8", "replace")
        return len(text).to_bytes(8, "little") + text + data[8 + length :]
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return _bytes(data, chance)


def as_something_else(path: Path, chance: random.Random) -> str:
    """Not a regular file, or one far too large."""
    path.unlink()
    kind = chance.choice(["fifo", "zero", "directory", "loop", "gone", "sparse"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(2**42)
    return kind
