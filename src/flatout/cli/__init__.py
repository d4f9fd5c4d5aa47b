"""One file per command, no logic."""

from importlib import import_module
from pkgutil import iter_modules


def register() -> None:
    """Importing a command's file adds it to the command line: all of them, by name."""
    for module in iter_modules(__path__):
        if module.name != "main":
            import_module(f"{__name__}.{module.name}")
