"""Where the service of this user is found."""

import os
import tempfile
from pathlib import Path

from flatout.cache.shared_memory import private_folder


class ServicePaths:
    """Files in a private folder of the user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "shared.sock"
        self.lock = folder / "shared.lock"  # locked while a service runs, by that service
        self.token = folder / "shared.token"  # what a connection has to say first; another one each time
        self.log = folder / "shared.log"


def service_paths() -> ServicePaths:
    """In $XDG_RUNTIME_DIR/flatout, or the temporary folder; a folder that others can write to is refused."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "flatout" if base else Path(tempfile.gettempdir()) / f"flatout-{os.getuid()}"
    return ServicePaths(private_folder(folder))
