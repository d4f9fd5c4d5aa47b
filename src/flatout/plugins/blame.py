"""Errors in user code, told with the user's own lines and none of flatout's."""

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatout.errors import ConfigError, FlatoutError, OwnCodeFailed

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_names: dict[str, str] = {}  # folder or file that user code was loaded from -> how the recipe names it


def remember(place: Path, what: str) -> None:
    """Code under `place` is the user's; `what` is the key and value that named it."""
    _names.setdefault(str(place), what)


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turns an exception of user code into a ConfigError that shows the user's own line; flatout's errors pass."""
    try:
        yield
    except FlatoutError:
        raise
    except (Exception, SystemExit) as error:
        found = ConfigError(f"{what}: {_where(error)}{type(error).__name__}: {error}")
        found.details = _lines(error)
        raise found from error


def own_code_error(error: BaseException) -> OwnCodeFailed | None:
    """What to say of an exception that came through code which a recipe names; None where it came from elsewhere."""
    named = [_owner(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    what = next((each for each in reversed(named) if each is not None), None)
    if what is None or not isinstance(error, Exception):
        return None
    found = OwnCodeFailed(f"{what}: {_where(error)}{type(error).__name__}: {error}")
    found.details = _lines(error)
    return found


def _owner(filename: str) -> str | None:
    return next((what for place, what in _names.items() if Path(filename).is_relative_to(place)), None)


def _is_users(filename: str) -> bool:
    if filename.startswith((_PACKAGE, "<")):
        return False
    return _owner(filename) is not None or (not filename.startswith(_LIBRARIES) and "site-packages" not in filename)


def _lines(error: BaseException) -> tuple[str, ...]:
    """The frames of user code as Python shows them, the innermost last; none where the message shows the only one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    if len(frames) < 2:
        return ()
    return tuple(line for each in traceback.format_list(frames) for line in each.rstrip().splitlines())


def _where(error: BaseException) -> str:
    """`net.py line 7: self.head = nn.Linearr(3, 4): `, the last line outside of flatout and of installed packages."""
    if isinstance(error, SyntaxError):
        return f"{error.filename} line {error.lineno}: {(error.text or '').strip()}: "
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            line = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename} line {frame.lineno}: {line}: "
    return ""
