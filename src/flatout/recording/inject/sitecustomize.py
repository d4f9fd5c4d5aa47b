"""Found first on PYTHONPATH by every Python process of a recorded command, before its own code runs.

Standard library only, and next to nothing: until `torch` is imported, a process pays for one comparison an import.
An existing sitecustomize of the user's runs as if this file were not there.
"""

import importlib.machinery
import importlib.util
import os
import sys
import time
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_RUN, _PACKAGE = "FLATOUT_RECORD", "FLATOUT_RECORD_PACKAGE"


class _TorchWatch:
    """Lets `import torch` go its way, then installs the hooks. Looking for torch without importing it does nothing."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            started = time.perf_counter()
            del loader.exec_module  # from here on the loader is as Python made it
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _activate(time.perf_counter() - started)

        loader.exec_module = exec_module


def _activate(import_seconds: float) -> None:
    try:
        if importlib.util.find_spec("flatout") is None:
            _offer_package(os.environ[_PACKAGE])
        from flatout.recording.activation import activate

        activate(os.environ[_RUN], import_seconds)
    except Exception as error:  # the script is worth more than its ledger
        _say_missing(error)


def _offer_package(folder: str) -> None:
    """The interpreter of the script is not the one flatout is installed for: this one package is taken from there."""
    spec = importlib.util.spec_from_file_location(
        "flatout", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["flatout"] = module
    spec.loader.exec_module(module)


def _say_missing(error: Exception) -> None:
    try:
        path = os.path.join(os.environ[_RUN], "recording", f"missing-{os.getpid()}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"nothing of process {os.getpid()} was recorded: {type(error).__name__}: {error}\n")
    except OSError:
        pass


def _run_the_users_own() -> None:
    """The sitecustomize that Python would have found without this folder."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get(_RUN):
    sys.meta_path.insert(0, _TorchWatch())
_run_the_users_own()
