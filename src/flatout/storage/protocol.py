"""What every store can do: say which objects it holds, and read ranges of them, many at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from flatout.errors import StorageError
from flatout.storage.counters import StoreCounters
from flatout.storage.locators import NO_LOCATOR

Locator = bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One object: `name` is relative to the store's root, '/'-separated, undecodable bytes as surrogate escapes."""

    name: str
    bytes: int
    locator: Locator = field(default=NO_LOCATOR, compare=False)  # see locators.py


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, start + length) of an object; length None means to its end."""

    name: str
    start: int = 0
    length: int | None = None


class Store(Protocol):
    """Objects under one root. Safe to use from several threads; may be pickled to another process."""

    url: str

    def origin(self) -> str:
        """Where the objects are, so that no two places share it: a real path, or endpoint, bucket and prefix."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Every object, in any order, each once."""
        ...

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        """One answer per range, in order: exactly the bytes asked for, or why not. Never raises for one object."""
        ...

    def local_path(self, name: str) -> str | None:
        """Where the kernel can open the object directly, or None."""
        ...

    def close(self) -> None: ...


def read_one(store: Store, name: str, start: int = 0, length: int | None = None) -> bytes:
    """The bytes of one object, or a part of it; what is wrong is raised."""
    (answer,) = store.read_many([Range(name, start, length)])
    if isinstance(answer, StorageError):
        raise answer
    return answer


class StoreOpener(Protocol):
    """The entry point of flatout.stores whose name is the scheme of `url`. It reads nothing yet."""

    def __call__(self, url: str, **options: Any) -> Store: ...


@runtime_checkable
class Counted(Protocol):
    """A store that counts the requests of this process."""

    def counters(self) -> StoreCounters: ...


def counters_of(store: Store) -> StoreCounters:
    """Requests of this process to the store; none where it does not count, as where the kernel reads the files."""
    return store.counters() if isinstance(store, Counted) else StoreCounters()


@runtime_checkable
class Checked(Protocol):
    """A store that can say in one line what is wrong with its address or credentials."""

    def check(self) -> None: ...
