"""The dashboard of a Python session: a process of its own beside it, shown in a cell of a notebook."""

import subprocess
from pathlib import Path

from markupsafe import Markup

from flatout.errors import ConfigError
from flatout.web.server import start_framed


class EmbeddedDashboard:
    """A dashboard that ends with this process. It can be looked at, in a cell or at its address; it cannot act."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, height: int) -> None:
        self._process = process
        self._height = height
        self.address = address

    def __repr__(self) -> str:
        return f"dashboard: {self.address}"

    def _repr_html_(self) -> str:
        frame = Markup('<iframe src="{0}" title="flatout dashboard" width="100%" height="{1}"></iframe>')
        return str(frame.format(self.address, self._height))

    def close(self) -> None:
        """End it before this process does."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def dashboard(*folders: str | Path, height: int = 640) -> EmbeddedDashboard:
    """The live page over folders of runs (default runs/). In a notebook it is shown in the cell, elsewhere at its
    `address`; `close()` ends it before this process does. Needs the extra web."""
    process = start_framed([Path(each) for each in folders] or [Path("runs")])
    assert process.stdout is not None
    address = process.stdout.readline().rpartition(" ")[2].strip()
    if not address:
        process.wait()
        raise ConfigError("the dashboard did not start; what it said is above")
    return EmbeddedDashboard(process, address, height)
