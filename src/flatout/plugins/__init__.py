"""The one way in for user code: `package.module:Name`, `./file.py:Name`, or the name of an entry point.

A recipe holds the name, never the object: every rank, worker process and producer loads it by `load`, the same way.
Entry points are those of the groups `flatout.<group>` of installed packages. docs/extend.md has an example of each.
"""

import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from flatout.errors import ConfigError
from flatout.plugins.blame import blamed, own_code_error, remember
from flatout.plugins.sources import digest, read_sources

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUPS",
    "blamed",
    "installed",
    "is_reference",
    "is_user_code",
    "load",
    "made",
    "own_code_error",
    "reference",
    "source_digest",
]

GROUPS = (
    "models",
    "datasets",
    "stores",
    "transforms",
    "losses",
    "metrics",
    "optimizers",
    "schedules",
    "trackers",
    "rules",
    "tasks",
)
"""Entry-point groups without their prefix."""

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


def load(group: str, name: str, key: str, expected: str | None = None) -> Callable[..., Any]:
    """The function or class that `name` stands for. `key` is what the recipe calls it, for errors.

    Every error is a ConfigError of one line: nothing of that name (with the nearest one), nothing that can be called,
    or an exception in the user's own code with the line that raised it. `expected` is the `source_digest` that the
    code must have: another text is refused.
    """
    code = _Code.named(group, name, key)
    if expected is not None and (now := code.digest()) != expected:
        raise ConfigError(
            f"{key} is {name!r}, whose source changed while it is in use: {expected[:8]} became {now[:8]}; restore "
            "the file, or start the command again"
        )
    with blamed(code.what):
        module = _load_file(code) if code.in_file else _import(code)
        remember(code.place(module), code.what)
        if not hasattr(module, code.attribute):
            near = _near(code.attribute, [each for each in vars(module) if not each.startswith("_")])
            raise ConfigError(f"{code.what}: {code.module or code.path} has no {code.attribute!r}{near}")
        found = getattr(module, code.attribute)
        if not callable(found):
            raise ConfigError(f"{code.what}: {code.attribute} is a {type(found).__name__}, not a function or class")
    loaded: Callable[..., Any] = found
    return loaded


def made(found: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """What is called with the options that a recipe has for it: an instance of a class, or the function itself."""
    made_of_class: Callable[..., Any] = found(**options) if isinstance(found, type) else partial(found, **options)
    return made_of_class


def source_digest(group: str, name: str, key: str) -> str:
    """Of the text of the file that holds the code and of what it imports from beside it: another text may compute
    another result. None of it is run."""
    return _Code.named(group, name, key).digest()


def reference(group: str, name: str, key: str) -> str:
    """The same code for another process, wherever that was started."""
    code = _Code.named(group, name, key)
    return f"{code.path if code.in_file else code.module}:{code.attribute}"


@dataclass(frozen=True)
class _Code:
    """Where a name leads."""

    what: str  # key and value, for errors
    module: str  # its name; empty for a file
    path: Path | None  # None for a module of which there is no file
    attribute: str

    @classmethod
    def named(cls, group: str, name: str, key: str) -> "_Code":
        what, match = f"{key} is {name!r}", _REFERENCE.fullmatch(_as_reference(group, name, key))
        assert match is not None
        if match["file"] is not None:
            return cls(what, "", _existing(what, Path(match["file"])), match["in_file"])
        return cls(what, match["module"], None, match["in_module"])

    @property
    def in_file(self) -> bool:
        return not self.module

    def sources(self) -> tuple[dict[Path, bytes], Path]:
        """Texts by path, the code's own first, and the folder that they are looked for in."""
        path, root, package = self.path, None if self.path is None else self.path.parent, None
        if not self.in_file:
            with blamed(self.what):
                spec = importlib.util.find_spec(self.module)
            path = Path(spec.origin) if spec is not None and spec.origin else Path(self.module)
            package, dots = self.module.partition(".")[0], self.module.count(".")
            root = path.parents[min(dots + (path.name == "__init__.py"), len(path.parents) - 1)]
        try:
            assert path is not None
            assert root is not None
            return read_sources(path, root, package), root
        except OSError:
            raise ConfigError(f"{self.what}: its source cannot be read at {path}") from None

    def digest(self) -> str:
        return digest(*self.sources())

    def place(self, module: ModuleType) -> Path:
        """What is the user's: a file, or the folder of a package."""
        file = Path(self.path or module.__file__ or self.module)
        return file.parent if file.name == "__init__.py" else file


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


def _existing(what: str, path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_file():
        beside = [each.name for each in path.parent.glob("*.py")]
        raise ConfigError(f"{what}: no file {path}{_near(path.name, beside)}; it is relative to the current folder")
    return path


class _Loader(SourceFileLoader):
    """Runs the text that was read, and neither a newer one nor a compiled form of an older one."""

    def __init__(self, name: str, path: Path, text: bytes) -> None:
        super().__init__(name, str(path))
        self._text = text

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self._text, self.path)


_beside: dict[Path, bytes] = {}  # digests of files that were imported by others in this process


def _load_file(code: _Code) -> ModuleType:
    """Under a name made from path and text, and with its folder on the path, so that it can import what lies beside it.

    What it imports is loaded by Python, once: a text that changed since would not be the one that runs.
    """
    texts, folder = code.sources()
    (path, text), *beside = texts.items()
    name = f"flatout_user_{path.stem}_{hashlib.sha256(str(path).encode() + text).hexdigest()[:12]}"
    with _loading:
        for other, other_text in beside:
            now = hashlib.sha256(other_text).digest()
            if _beside.setdefault(other, now) != now:
                raise ConfigError(f"{code.what}: {other} changed since this process imported it; start it again")
        if name in sys.modules:
            return sys.modules[name]
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        loader = _Loader(name, path, text)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up while it is being loaded
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _import(code: _Code) -> ModuleType:
    try:
        return importlib.import_module(code.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{code.module}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        import pkgutil

        parent, _, last = error.name.rpartition(".")
        paths = importlib.import_module(parent).__path__ if parent else None
        near = _near(last, [module.name for module in pkgutil.iter_modules(paths)])
        raise ConfigError(f"{code.what}: no module {error.name!r} is installed{near}") from None


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
