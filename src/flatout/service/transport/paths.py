"""Where the service of this user is found."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from flatout.cache.shared_memory import private_folder


@dataclass(frozen=True)
class ServicePaths:
    """Files in a private folder of the user."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "shared.sock"

    @property
    def lock(self) -> Path:
        """Locked while a service runs, by that service."""
        return self.folder / "shared.lock"

    @property
    def token(self) -> Path:
        """What a connection has to say first; another one each time a service starts."""
        return self.folder / "shared.token"

    @property
    def log(self) -> Path:
        return self.folder / "shared.log"


def service_paths() -> ServicePaths:
    """In $XDG_RUNTIME_DIR/flatout, or the temporary folder; a folder that others can write to is refused."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "flatout" if base else Path(tempfile.gettempdir()) / f"flatout-{os.getuid()}"
    return ServicePaths(private_folder(folder))
