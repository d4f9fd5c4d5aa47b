"""Files that a command is asked to write: what stands in the way is found out before an hour of work, not after."""

import os
from pathlib import Path

from flatout.errors import ConfigError


def require_place(path: Path) -> None:
    """Refuses a folder, a file in a folder that is not there, and one that must not be written."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"cannot write {path}: {folder} may not be written; choose another place")
