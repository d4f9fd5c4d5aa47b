"""Seals of batches in a store that others can write to: a keyed BLAKE2b over every byte, with a key from the token.

Each entry has its own key, so that a function that makes one batch can be given the key for that batch and no other. A
seal proves that a holder of the token wrote these bytes under this name; it is not encryption.

BLAKE2b takes 42 ms of CPU for 38 MB on every processor; HMAC-SHA-256 takes 22 ms on those with instructions for it, 71
ms on others. Leaves of 2 MB are hashed separately, so that a reader uses several cores, while the rest still arrives.
"""

import hashlib
import hmac
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial

SEAL_BYTES = 32
_PURPOSE = b"flatout seal 1"  # separates these keys from other uses of the token
_LEAF_BYTES = 2 << 20
_MOST_THREADS = 4  # with more, memory bandwidth is the limit

EntryKey = Callable[[bytes], bytes]
"""From the store key of a batch to the secret key that seals it."""


def entry_keys(token: str) -> EntryKey:
    """The sealing keys of the service that has this token."""
    return partial(_entry_key, hashlib.blake2b(token.encode(), digest_size=32, person=_PURPOSE).digest())


def _entry_key(service_key: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(key, key=service_key, digest_size=32).digest()


class Sealer:
    """The seal of data that is still arriving; with `in_threads`, computed on several cores."""

    def __init__(self, entry_key: bytes, data: memoryview, in_threads: bool) -> None:
        self._entry_key = entry_key
        self._data = data
        self._there = 0
        self._leaves: list[Future[bytes] | bytes] = []
        self._threads = _threads(os.getpid()) if in_threads and len(data) > _LEAF_BYTES else None

    def arrived(self, count: int) -> None:
        """`count` more bytes of the data are there."""
        self._there += count
        while (start := len(self._leaves) * _LEAF_BYTES) < self._there:
            end = min(start + _LEAF_BYTES, len(self._data))
            if end > self._there:
                return
            leaf = partial(_leaf, self._entry_key, len(self._leaves), self._data[start:end])
            self._leaves.append(leaf() if self._threads is None else self._threads.submit(leaf))

    def seal(self) -> bytes:
        """Called after all of the data has arrived."""
        leaves = [each if isinstance(each, bytes) else each.result() for each in self._leaves]
        summary = len(self._data).to_bytes(8, "little") + b"".join(leaves)
        return hashlib.blake2b(summary, key=self._entry_key, digest_size=SEAL_BYTES, person=b"root").digest()

    def matches(self, seal: bytes) -> bool:
        return hmac.compare_digest(seal, self.seal())


def _leaf(entry_key: bytes, number: int, data: memoryview) -> bytes:
    place = number.to_bytes(8, "little")
    return hashlib.blake2b(data, key=entry_key, digest_size=SEAL_BYTES, person=b"leaf", salt=place).digest()


def seal_of(entry_key: bytes, data: memoryview) -> bytes:
    sealer = Sealer(entry_key, data, in_threads=False)  # producers use all cores already
    sealer.arrived(len(data))
    return sealer.seal()


@lru_cache(maxsize=1)
def _threads(pid: int) -> ThreadPoolExecutor | None:
    """One pool for each process: after a fork the threads of the parent do not exist."""
    count = min(_MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    return ThreadPoolExecutor(count, "flatout-seal") if count > 1 else None
