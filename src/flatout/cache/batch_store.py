"""The protocol of stores of shared batches: mapped memory and Redis."""

from typing import Protocol


class BatchStore(Protocol):
    """As producers and jobs use it. Mapped memory finds a batch by its buffer's number, Redis by its key (32 bytes)."""

    address: str
    is_mapped: bool
    """Batches are in this machine's memory: reading one costs no copy, and the coordinator has verified all of it."""

    def space(self, number: int, count: int) -> memoryview:
        """Where to write a batch of at most `count` bytes."""
        ...

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        """`count` bytes of `space` were written; from here on they can be read."""
        ...

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        """The batch, of at most `most_bytes`; anything else found there, or nothing, is a BadBundle."""
        ...


class OwnStore(BatchStore, Protocol):
    """As the coordinator uses it."""

    def make(self, number: int, count: int) -> None:
        """Allocate a buffer of `count` bytes; NoSpace where there is no room."""
        ...

    def discard(self, number: int, key: bytes | None) -> None:
        """Remove a buffer and the batch in it, if there is one."""
        ...

    def verify(self, number: int, key: bytes) -> None:
        """Raise BadBundle unless the batch of this key is there, whole."""
        ...

    def touch(self, key: bytes) -> None:
        """Renew the time to live of a batch, where the store has one."""
        ...

    def close(self) -> None: ...
