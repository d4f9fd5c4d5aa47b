"""Where shared batches lie: the small protocol that mapped memory and Redis have in common."""

from typing import Protocol


class BatchStore(Protocol):
    """What producers and jobs do with a store. Buffers have a number, batches a key (32 bytes)."""

    address: str
    is_mapped: bool
    """Batches lie in this machine's memory: reading one costs nothing, and the coordinator has checked it."""

    def space(self, number: int, count: int) -> memoryview:
        """Where to write a batch of at most `count` bytes."""
        ...

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        """What was written can be read from here on."""
        ...

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        """A batch that is no longer than it can be; what else is there is a BadBundle."""
        ...


class OwnStore(BatchStore, Protocol):
    """What only the coordinator does with it."""

    def make(self, number: int, count: int) -> None: ...

    def discard(self, number: int, key: bytes | None) -> None: ...

    def verify(self, number: int, key: bytes) -> None:
        """Raise BadBundle unless the batch of this key is there, whole."""
        ...

    def touch(self, key: bytes) -> None: ...

    def close(self) -> None: ...
