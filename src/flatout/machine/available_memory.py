"""How much memory this process may still take, and what to say where that is too little. Needs no torch."""

import errno
import os
import sys
from dataclasses import dataclass

import psutil

from flatout.errors import FlatoutError, NoSpace, RunFailed
from flatout.machine.cgroup import memory_used_bytes, own_limits
from flatout.units import format_bytes

LEAST_STEP_BYTES = 128 << 20
"""For kernels, threads and batches of the smallest model; with less, oneDNN ends the process with a segfault."""
_TO_START_BYTES = 1_000_000_000
_LEAST_TO_START_BYTES = 640_000_000  # of addresses, that torch's CPU build and flatout map; a CUDA build maps more
_LEAST_RESIDENT_BYTES = 190_000_000  # of memory, that importing them takes; with less the kernel kills without a word
_SAID_BY_ALLOCATORS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "unable to mmap",
    "bad_alloc",
    "out of memory",
)
_SAID_WITHIN_LIMITS = ("could not create a primitive", "can't start new thread", "failed to map segment")


@dataclass(frozen=True)
class Limit:
    """One bound on this process, in bytes."""

    name: str
    limit_bytes: int
    taken_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.taken_bytes

    def __str__(self) -> str:
        return (
            f"{self.name} allows {format_bytes(self.limit_bytes)}, of which {format_bytes(self.taken_bytes)} are taken"
        )


def tightest_limit() -> Limit | None:
    """Of `ulimit -v` and the container; None where neither is set."""
    found = [each for each in (_address_limit(), _container_limit()) if each is not None]
    return min(found, key=lambda each: each.free_bytes, default=None)


def _address_limit() -> Limit | None:
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
    except (ImportError, OSError):
        return None
    if most == resource.RLIM_INFINITY:
        return None
    return Limit("ulimit -v", most, psutil.Process().memory_info().vms)


def _container_limit() -> Limit | None:
    limits = own_limits()
    if limits.memory_bytes is None or limits.memory_folder is None:
        return None
    swap_bytes = psutil.swap_memory().free
    return Limit("the container", limits.memory_bytes + swap_bytes, memory_used_bytes(limits.memory_folder) or 0)


def require_memory(state_bytes: int, what: str, limit: Limit | None) -> None:
    """Before the first file is written: gradients and optimizer (`state_bytes`) must fit, and the least of a step."""
    needed = state_bytes + LEAST_STEP_BYTES
    if limit is not None and limit.free_bytes < needed:
        raise NoSpace(f"training {what} needs at least {format_bytes(needed)} more memory, but {limit}; {remedy()}")


def remedy() -> str:
    """What a user can do about too little memory."""
    return "lower model.width, data.batch_size, data.workers or data.memory, or raise the limit"


def is_out_of_memory(error: BaseException, limit: Limit | None) -> bool:
    """Libraries say it in their own words; some of them mean other things where there is no limit."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if not isinstance(error, RuntimeError | ImportError):
        return False
    texts = _SAID_BY_ALLOCATORS if limit is None else (*_SAID_BY_ALLOCATORS, *_SAID_WITHIN_LIMITS)
    return any(text in str(error) for text in texts)


def explain_memory(error: BaseException, when: str) -> FlatoutError | None:
    """What to say of an error that means too little memory on this host; None for any other."""
    limit = tightest_limit()
    if not is_out_of_memory(error, limit):
        return None
    words = str(error).splitlines()[0] if str(error) else type(error).__name__
    bound = (
        f"{os.uname().nodename} has {format_bytes(psutil.virtual_memory().available)} left" if limit is None else limit
    )
    return RunFailed(f"this host ran out of memory {when}: {words}; {bound}; {remedy()}")


def require_start() -> None:
    """Before torch is loaded: with too few addresses for it, its libraries fail in many ways, aborts among them."""
    if "torch" in sys.modules:
        return
    for limit, least_bytes in ((_address_limit(), _LEAST_TO_START_BYTES), (_container_limit(), _LEAST_RESIDENT_BYTES)):
        if limit is not None and limit.free_bytes < least_bytes:
            raise RunFailed(_too_little_to_start(limit))


def explain_start(error: BaseException) -> str | None:
    """The same where it was enough for most of it."""
    limit = tightest_limit()
    return _too_little_to_start(limit) if is_out_of_memory(error, limit) else None


def _too_little_to_start(limit: Limit | None) -> str:
    bound = "the memory that is free" if limit is None else str(limit)
    return f"not enough memory to start: torch and flatout take about {format_bytes(_TO_START_BYTES)}; {bound}"
