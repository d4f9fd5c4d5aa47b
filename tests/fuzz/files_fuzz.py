"""Damages the files of a real run directory, one at a time, and runs every command that reads them, in this process.

python tests/fuzz/files_fuzz.py [ROUNDS] [SEED] [--result FILE]

Each round must end in success or in one FlatoutError with exit code 2, within CPU_SECONDS of processor time.
"""

import argparse
import contextlib
import copy
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flatout.cli import register
from flatout.cli.main import app
from flatout.engine import checkpoint
from flatout.errors import CheckpointCorrupt, FlatoutError

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 20  # of one command, after which it hangs: they take a tenth of a second
WALL_SECONDS = 300
COMMANDS = {
    "runs": ["runs", "."],
    "runs --json": ["runs", ".", "--json"],
    "report": ["report", "tiny"],
    "report --markdown": ["report", "tiny", "--markdown"],
    "report --trace": ["report", "tiny", "--trace"],
    "explain": ["explain", "tiny"],
    "explain --fix": ["explain", "tiny", "--fix", "fixed.yaml"],
    "compare": ["compare", "tiny", "other"],
    "predict": ["predict", "tiny", "--if", "data.workers=2"],
    "predict --score": ["predict", ".", "--score"],
    "config show": ["config", "show", "tiny/config.yaml"],
}
CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "checkpoint list": checkpoint.list_saved,
    "checkpoint newest": checkpoint.load_newest,
    "checkpoint weights": lambda folder: checkpoint.load_tensors(sorted(folder.glob("step-*"))[-1]),
}
SKIPPED = {"lock", "log.txt", "report.html", "trace.json"}  # written or shown as they are, never parsed

NASTY_VALUES: list[Any] = [
    None, True, [], {}, [[]], {"": None}, "", "x", "\0", "\ud800", "é" * 300, "<script>", -1, 0, 1, 10**9, 2**63, 10**50,
    -(10**400), 1e308, -1e308, 5e-324, float("inf"), float("nan"), 1.5, [1, "a"], {"value": "x"}, ["x"] * 50, "1e999",
]  # fmt: skip
NASTY_CELLS = ["", "inf", "-inf", "nan", "-1", "1e308", "-1e308", "1e999", "x", "9" * 400, "0x1f", "1_0", "٣", "\0", '"',
               "0", " 5 ", "1.5", "=1+1", "a,b", "\n", "2" * 18]  # fmt: skip
NASTY_TEXT = [b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b"&a [*a]", b"a: &a {b: *a}", b"- " * 500, b"\xff\xfe\0", b"null",
              b"[]", b"1", b'"x"', b"", b"\n", b"{}", b"!!python/object:os.system x", b"%", b"\t", b"a: b: c",
              b"a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\n" + b"".join(b"c%d: &c%d [*b,*b,*b,*b,*b]\n" % (i, i) for i in range(9))]  # fmt: skip


ended_early: list[bool] = []


class Hangs(BaseException):
    """Not an Exception: nobody may catch it on the way."""


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


@dataclass
class Result:
    rounds: int = 0
    seconds: float = 0.0
    ended: dict[str, Counter[str]] = field(default_factory=dict)  # command -> how it ended -> how often
    files: Counter[str] = field(default_factory=Counter)
    found: dict[str, str] = field(default_factory=dict)  # where it happened -> what, with the first traceback


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    """Of processor time: a busy machine is no hang."""

    def stop(*_: object) -> None:
        raise Hangs

    faulthandler.dump_traceback_later(
        WALL_SECONDS, exit=True, file=sys.__stderr__
    )  # a wait in the kernel takes no processor time
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


def attempt(act: Callable[[], object]) -> tuple[str, str]:
    """How it ended, and for what must not be, where and how."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), deadline():
            act()
    except CheckpointCorrupt:
        return "damaged", ""  # noticed by its digest, and said
    except FlatoutError as error:
        if error.exit_code == 2 and len(str(error)) < 2000:
            return "exit 2", ""
        return "wrong exit", f"{type(error).__name__} exit {error.exit_code}: {str(error)[:300]}"
    except Hangs:
        return "hang", traceback.format_exc(limit=-4)
    except SystemExit as error:
        return ("fine", "") if error.code in (0, 1, None) else ("wrong exit", f"exit {error.code}")
    except BaseException as error:
        if type(error).__name__ == "Exit":  # typer's
            return "fine", ""
        return "traceback", traceback.format_exc(limit=-4)
    return "fine", ""


def fuzz(run: Path, rounds: int, seed: int, stop_at: int = 20) -> Result:
    """`run` is read only; a damaged copy of it stands beside a whole one."""
    register()
    result, started = Result(), time.perf_counter()
    names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    names = [name for name in names if name not in SKIPPED]
    whole = {name: (run / name).read_bytes() for name in names}
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        shutil.copytree(run, "other", symlinks=True)
        for number in range(rounds):
            chance = random.Random(f"{seed} {number}")
            file = chance.choice(names if chance.random() < 0.9 else [n for n in names if n.endswith(".safetensors")])
            shutil.rmtree("tiny", ignore_errors=True)
            for each, data in whole.items():
                if file.endswith(".safetensors") or not each.endswith(".safetensors"):
                    Path("tiny", each).parent.mkdir(parents=True, exist_ok=True)
                    Path("tiny", each).write_bytes(data)
            path = Path("tiny", file)
            if chance.random() < 0.03:
                how = as_something_else(path, chance)
            else:
                how = "changed"
                path.write_bytes(mutated(whole[file], file, chance))
            commands: dict[str, Callable[[], object]] = (
                {key: (lambda act=act: act(Path("tiny/checkpoints"))) for key, act in CHECKPOINTS.items()}
                if file.endswith(".safetensors")
                else {key: (lambda words=words: app(words, standalone_mode=False)) for key, words in COMMANDS.items()}
            )
            command = chance.choice(list(commands))
            ended, trouble = attempt(commands[command])
            result.rounds += 1
            if result.rounds % 1000 == 0:
                sys.stderr.write(f"{result.rounds:,} of {rounds:,} rounds, {len(result.found)} found\n")
            result.files[file] += 1
            result.ended.setdefault(command, Counter())[ended] += 1
            if trouble:
                where = next((line for line in reversed(trouble.splitlines()) if line.startswith("  File")), trouble)
                key = f"{ended} {where.strip().replace(str(ROOT), '')} {trouble.splitlines()[-1][:150]}"
                if key not in result.found:
                    result.found[key] = f"round {number} seed {seed}: {command} on {file} ({how})\n{trouble}"
            if len(result.found) >= stop_at or ended_early:
                break
    result.seconds = time.perf_counter() - started
    return result


def make_run(folder: Path) -> Path:
    """A run that was trained, explained, predicted from and reported, by the installed commands."""
    sys.path.insert(0, str(ROOT / "tests"))
    from training import make_dataset, write_recipe

    data = make_dataset(folder / "data")
    (data / "train/broken.jpg").write_bytes(b"")
    recipe = write_recipe(folder / "tiny.yaml", data, cost__instance="g5.xlarge")
    flatout = str(Path(sys.executable).with_name("flatout"))
    for words in (["train", str(recipe)], *finishing("runs/tiny")):
        subprocess.run([flatout, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs/tiny"


def finishing(run: str) -> list[list[str]]:
    """Commands after which a run directory has every file it can have."""
    return [["explain", run], ["predict", run, "--if", "data.workers=2"], ["report", run]]


def as_text(result: Result, command: str, seed: int) -> str:
    kinds = sorted({kind for counts in result.ended.values() for kind in counts})
    rows = [f"| {name} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |" for name, counts in sorted(result.ended.items())]  # fmt: skip
    found = "\n".join(f"- {key}" for key in result.found) or "nothing: no traceback, no hang, no other exit code than 2"
    return (
        f"# Damaged files of a run directory against every command that reads them\n\nCommand: `{command}` (seed {seed})\n\n"
        f"{result.rounds} rounds in {result.seconds:.0f} s. Each damages one file of a real run directory and runs one command in the "
        f"same process; it must end well or with one line and exit code 2, within {CPU_SECONDS} s of processor time.\n\n"
        f"| command | {' | '.join(kinds)} |\n|---|{'---:|' * len(kinds)}\n" + "\n".join(rows) + "\n\n"
        f"Files damaged: {', '.join(f'{name} {count}' for name, count in sorted(result.files.items()))}.\n\n"
        f"Found:\n{found}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=2000)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: ended_early.append(True))  # the result tells how far it came
    with tempfile.TemporaryDirectory() as name:
        run = given.run.resolve() if given.run else make_run(Path(name))
        result = fuzz(run, given.rounds, given.seed)
    text = as_text(result, f"make fuzz-files ROUNDS={given.rounds}", given.seed)
    sys.stdout.write(text + "\n\n" + "\n\n".join(result.found.values()))
    if given.result:
        before = given.result.read_text(encoding="utf-8") + "\n#" if given.result.exists() else ""  # finds stay listed
        given.result.write_text(before + text, encoding="utf-8")
    sys.exit(bool(result.found))


if __name__ == "__main__":
    main()
