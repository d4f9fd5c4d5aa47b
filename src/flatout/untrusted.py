"""The one reader of recipes, run directories and whatever else may come from anywhere: bounded in time and memory.

Everything is a regular file of a limited size (a pipe or a device never ends), nested at most MAX_DEPTH deep, with
aliases that unfold to at most MAX_NODES values, and numbers that are finite and small enough to be squared. What breaks
a limit is a BadFile: one line with the value, the limit and what to do. FileNotFoundError is left to the caller.
"""

import json
import math
import os
import re
import reprlib
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import yaml

from flatout.errors import BadFile, UserError
from flatout.units import format_bytes

MAX_DEPTH = 32
MAX_NODES = 10_000  # of a YAML file, its aliases unfolded
MAX_NUMBER = 1e40  # a loss may reach 3e38
MAX_RECIPE_BYTES = 2**19
MAX_RECORD_BYTES = 2**25  # summary.json and its like
MAX_TABLE_BYTES = 2**30  # a million steps are 120 MB
MAX_CHECKPOINT_BYTES = 2**40
MAX_ARRAYS_BYTES = 2**32  # identity.npz and its like: 10 million samples are 1 GB
MAX_LINE_CHARACTERS = 2**20
_MAY_BE_ODD = re.compile(r"[eE]\+?\d|\d{30}|\\u[dD][89a-fA-F]")  # a very large number, half a character
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80
Shape = Any
"""What readers count on: a dict for a mapping of which these keys are checked, ["kind"] for a list, and the KINDS of
values: number, figure (NaN and infinities too), amount (not below 0), count (a whole one), text, flag, amounts (a
mapping to amounts)."""


@contextmanager
def blamed_as(kind: type[UserError]) -> Iterator[None]:
    """A BadFile in here is raised as what the caller's callers know."""
    try:
        yield
    except BadFile as error:
        raise kind(str(error)) from None


def open_text(path: Path, max_bytes: int, errors: str = "surrogateescape", newline: str | None = None) -> TextIO:
    """A regular file of at most `max_bytes`; others are not even opened for reading, which could wait for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_regular(os.fstat(fd), path, max_bytes)
    except BadFile:
        os.close(fd)
        raise
    return os.fdopen(fd, encoding="utf-8", errors=errors, newline=newline)


def require_regular(path: Path, max_bytes: int = MAX_CHECKPOINT_BYTES) -> None:
    """For a library that opens the file itself."""
    _require_regular(path.stat(), path, max_bytes)


def _require_regular(about: os.stat_result, path: Path, max_bytes: int) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise BadFile(f"cannot read {path}: it is a directory; name a file")
    if not stat.S_ISREG(about.st_mode):
        raise BadFile(f"cannot read {path}: it is a pipe or a device; name a file")
    if about.st_size > max_bytes:
        raise BadFile(
            f"cannot read {path}: it has {format_bytes(about.st_size)}, more than the limit of "
            f"{format_bytes(max_bytes)}; is it the right file?"
        )


def read_text(path: Path, max_bytes: int, errors: str = "strict", newline: str | None = None) -> str:
    """The whole file, which may grow beyond the limit meanwhile: the rest is not read."""
    try:
        with open_text(path, max_bytes, errors, newline) as file:
            return file.read(max_bytes)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise BadFile(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """As `read_text`, of any content."""
    try:
        require_regular(path, max_bytes)
        with path.open("rb") as file:  # so many bytes are allocated before any is read
            return file.read(min(max_bytes, os.fstat(file.fileno()).st_size))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None


def read_lines(path: Path, max_bytes: int = 64 * MAX_TABLE_BYTES) -> Iterator[str]:
    """Lines of a file that may not fit into memory; one that is too long is left out. None where there is no file."""
    try:
        file = open_text(path, max_bytes, "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from None
    with file:
        whole = True  # whether the next piece begins a line
        while line := file.readline(MAX_LINE_CHARACTERS):
            ends = line.endswith("\n")
            if whole and (ends or len(line) < MAX_LINE_CHARACTERS):
                yield line
            whole = ends


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The mapping of every line; a line cut short by a kill, or of another kind, is left out."""
    for line in read_lines(path):
        try:
            row = parse_json(line, path)
        except BadFile:
            continue
        if isinstance(row, dict):
            yield row


def read_json(path: Path, max_bytes: int = MAX_RECORD_BYTES) -> Any:
    return parse_json(read_text(path, max_bytes), path)


def parse_json(text: str, where: object, finite: bool = True) -> Any:
    """`finite`: numbers are; what flatout itself writes with NaN in it is a checkpoint's state."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        raise BadFile(f"cannot read {where}: not valid JSON: {error}") from None
    if _MAY_BE_ODD.search(text) or text.count("[") + text.count("{") > MAX_DEPTH:  # most lines of a run are flat
        _check(value, where, MAX_NUMBER if finite else math.inf)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def read_yaml(path: Path, max_bytes: int = MAX_RECIPE_BYTES) -> Any:
    return parse_yaml(read_text(path, max_bytes), path)


def parse_yaml(text: str, where: object) -> Any:
    """As yaml.safe_load."""
    if len(text) > MAX_RECIPE_BYTES:
        raise BadFile(f"cannot read {where}: more than {format_bytes(MAX_RECIPE_BYTES)}; is it the right file?")
    try:
        value = (_QUICK if _is_simple(text) else _BoundedLoader)(text).get_single_data()
    except RecursionError:
        raise _too_deep(where) from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError) as error:  # PyYAML raises all of them
        raise BadFile(f"{where} is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    _check(value, where, unless=math.inf)  # a schema says better what is wrong with it
    return value


_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # by libyaml, eight times as fast


def _is_simple(text: str) -> bool:
    """Whether no alias can unfold and nothing is deep or wrong, told without building anything of it."""
    if "&" in text or "*" in text:
        return False
    depth = values = 0
    try:
        for event in yaml.parse(text, _QUICK):
            values += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth >= MAX_DEPTH or values > MAX_NODES:
                return False
    except (yaml.YAMLError, ValueError):
        return False  # the other loader says what is wrong
    return True


class _BoundedLoader(yaml.SafeLoader):
    """Counts what aliases unfold to before anything is built of it, and refuses an alias inside of its own anchor."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # nodes below and including a node, by its id
        self._composed = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._composed += 1
        if self._composed > MAX_NODES:
            raise yaml.YAMLError(f"more than {MAX_NODES} values")
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested more than {MAX_DEPTH} deep")
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return node
        if alias and id(node) not in self._sizes:
            raise yaml.YAMLError("an alias refers to what it is a part of")
        if not alias:
            self._sizes[id(node)] = 1 + sum(self._sizes[id(each)] for each in _children(node))
        if self._sizes[id(node)] > MAX_NODES:
            raise yaml.YAMLError(f"more than {MAX_NODES} values, its aliases unfolded")
        return node


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _too_deep(where: object) -> BadFile:
    return BadFile(f"cannot read {where}: it is nested more than {MAX_DEPTH} deep; is it the right file?")


def _check(value: Any, where: object, most: float = MAX_NUMBER, unless: float | None = None) -> None:
    """Depth, keys, numbers (one that is `unless` passes) and characters, level by level: nothing here recurses."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(type(each) in (int, float) and most < abs(each) != unless for each in level):
            raise BadFile(f"cannot read {where}: it holds a number beyond {MAX_NUMBER:g}")
        if any(isinstance(each, str) and not _can_be_written(each) for each in level):
            raise BadFile(f"cannot read {where}: it holds half a character (a lone surrogate)")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                if not all(isinstance(key, str | int | float | None) for key in each):
                    raise BadFile(f"cannot read {where}: a key is neither a word nor a number")
                below += [*each.values(), *(key for key in each if isinstance(key, str))]
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise _too_deep(where)


def _can_be_written(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")  # names of files that are not UTF-8 may be in it
    except UnicodeEncodeError:
        return False
    return True


def number(cell: object) -> float | None:
    """A cell as it is written or as it is read back; None for a blank, a word, and what is not finite or too large."""
    try:
        value = float(cell) if cell not in (None, "") else math.nan  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return None
    return value if abs(value) <= MAX_NUMBER else None


def check_shape(value: Any, shape: Shape, where: object, key: str = "") -> None:
    """A value of another type than its readers count on is a BadFile that names it; None and missing keys pass."""
    if value is None:
        return
    if isinstance(shape, dict):
        _expect(isinstance(value, dict), value, "keys with values", where, key)
        for name, inner in shape.items():
            check_shape(value.get(name), inner, where, f"{key}.{name}" if key else name)
    elif isinstance(shape, list):
        _expect(isinstance(value, list), value, "a list", where, key)
        for place, each in enumerate(value):
            check_shape(each, shape[0], where, f"{key}[{place}]")
    else:
        accepts, expected = KINDS[shape]
        _expect(accepts(value), value, expected, where, key)


def _expect(fits: bool, value: Any, expected: str, where: object, key: str) -> None:
    if not fits:
        raise BadFile(f"cannot read {where}: {key or 'it'} is {shortened(value)}, expected {expected}")


def shortened(value: Any) -> str:
    """A value for a message: of whatever size, the beginning of it."""
    return _SHORT.repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and number(value) is not None


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "number": (_is_number, "a number"),
    "figure": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    "amount": (_is_amount, "a number, not below 0"),
    "count": (lambda value: _is_amount(value) and isinstance(value, int) and value < 2**53, "a whole number"),
    "text": (lambda value: isinstance(value, str), "text"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "amounts": (lambda value: isinstance(value, dict) and all(map(_is_amount, value.values())), "names with numbers"),
}
