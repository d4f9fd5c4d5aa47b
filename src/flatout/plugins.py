"""The one way in for user code: `package.module:Name`, `./file.py:Name`, or the name of an entry point.

A recipe holds the name, never the object: every rank, worker process and producer loads it by `load`, the same way.
Entry points are those of the groups `flatout.<group>` of installed packages. docs/extend.md has an example of each.
"""

import difflib
import hashlib
import importlib
import importlib.util
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flatout.errors import ConfigError, FlatoutError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = (
    "models",
    "datasets",
    "stores",
    "transforms",
    "losses",
    "metrics",
    "optimizers",
    "trackers",
    "rules",
    "tasks",
)
"""Entry-point groups without their prefix. Losses, metrics and optimizers have Protocols but are not read yet."""

_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<in_file>\w+)|(?P<module>[^\W\d]\w*(\.\w+)*):(?P<in_module>[^\W\d]\w*)")
_loading = threading.Lock()


def is_reference(name: str) -> bool:
    """Whether the name says where the code is: `package.module:Name` or `./file.py:Name`."""
    return _REFERENCE.fullmatch(name) is not None


def installed(group: str) -> dict[str, "EntryPoint"]:
    """Entry points of `flatout.<group>` by name; two packages that take one name are refused."""
    return dict(_installed(group))


@lru_cache(maxsize=len(GROUPS))
def _installed(group: str) -> tuple[tuple[str, "EntryPoint"], ...]:
    from importlib.metadata import entry_points  # takes longer to import than all of this: only where a name is unknown

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"flatout.{group}"):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise ConfigError(
                f"two packages offer flatout.{group} {point.name!r}: {other.value} and {point.value}; uninstall one"
            )
    return tuple(found.items())


def is_user_code(group: str, name: str) -> bool:
    """Whether `load` would look for it outside of flatout: a reference, or an entry point that is installed."""
    return is_reference(name) or name in installed(group)


def load(group: str, name: str, key: str) -> Callable[..., Any]:
    """The function or class that `name` stands for. `key` is what the recipe calls it, for errors.

    Every error is a ConfigError of one line: nothing of that name (with the nearest one), nothing that can be called,
    or an exception in the user's own code with the line that raised it.
    """
    reference = _as_reference(group, name, key)
    match = _REFERENCE.fullmatch(reference)
    assert match is not None
    with blamed(f"{key} is {name!r}"):
        path, attribute = match["file"], match["in_file"] or match["in_module"]
        module = _load_file(Path(path)) if path else _import(match["module"])
        if not hasattr(module, attribute):
            near = _near(attribute, [each for each in vars(module) if not each.startswith("_")])
            raise ConfigError(f"{key} is {name!r}: {path or match['module']} has no {attribute!r}{near}")
        found = getattr(module, attribute)
        if not callable(found):
            raise ConfigError(f"{key} is {name!r}: {attribute} is a {type(found).__name__}, not a function or class")
    loaded: Callable[..., Any] = found
    return loaded


def source_digest(group: str, name: str, key: str) -> str:
    """Of the text of the file that holds the code: another text may compute another result. Nothing is run."""
    match = _REFERENCE.fullmatch(_as_reference(group, name, key))
    assert match is not None
    path = match["file"]
    if path is None:
        with blamed(f"{key} is {name!r}"):
            spec = importlib.util.find_spec(match["module"])
        path = spec.origin if spec is not None else None
    try:
        return hashlib.sha256(Path(path or "").read_bytes()).hexdigest()
    except OSError:
        raise ConfigError(f"{key} is {name!r}: its source cannot be read at {path or match['module']}") from None


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turns an exception of user code into a ConfigError that shows the user's own line; flatout's errors pass."""
    try:
        yield
    except FlatoutError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {_where(error)}{type(error).__name__}: {error}") from error


def _as_reference(group: str, name: str, key: str) -> str:
    if is_reference(name):
        return name
    points = installed(group)
    if name not in points:
        raise ConfigError(
            f"{key} is {name!r}, which no installed package offers as flatout.{group}{_near(name, points)}; "
            "write package.module:Name or ./file.py:Name"
        )
    return f"{points[name].module}:{points[name].attr}"


def _load_file(path: Path) -> ModuleType:
    """Under a name made from its path, and with its folder on the path, so that it can import what lies beside it."""
    path = path.expanduser().absolute()
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")]
        raise ConfigError(f"no file {path}{_near(path.name, beside)}; it is relative to the current folder")
    name = f"flatout_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up while it is being loaded
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        import pkgutil

        parent, _, last = error.name.rpartition(".")
        paths = importlib.import_module(parent).__path__ if parent else None
        near = _near(last, [module.name for module in pkgutil.iter_modules(paths)])
        raise ConfigError(f"no module {error.name!r} is installed{near}") from None


def _where(error: Exception) -> str:
    """`net.py line 7: self.head = nn.Linearr(3, 4): `, the last line outside of flatout and of installed packages."""
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}: {(error.text or '').strip()}: "
    here = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((here, "<frozen")) and "site-packages" not in frame.filename:
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename} line {frame.lineno}: {line}: "
    return ""


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
