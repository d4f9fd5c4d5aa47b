"""Imports of packages that are installed only with an extra (flatout[service], [ray], [aws])."""

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.errors import ConfigError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: a missing package is a ConfigError with the command that installs it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'flatout[{extra}]'") from None
