"""Imports of packages that are installed only with an extra (flatout[service], [ray], [aws])."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from flatout.errors import ConfigError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: a missing package is a ConfigError with the command that installs it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed; pip install 'flatout[{extra}]'") from None


def connect_to_ray(address: str | None) -> ModuleType:
    """The module `ray`, connected to this cluster; None starts one of this machine alone."""
    with needs("ray"):
        import ray

    if not ray.is_initialized():
        # Ray's workers give way to every other process (nice 15), and what they start does, too
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
    return ray
