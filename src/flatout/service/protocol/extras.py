"""What is installed only where it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.errors import ConfigError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: what is missing is one line, with the command that installs it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'flatout[{extra}]'") from None
