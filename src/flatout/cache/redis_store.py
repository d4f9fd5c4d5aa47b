"""Batches in a Redis or Valkey, for jobs and producers on several machines. Its contents are not trusted.

A batch is one value with a time to live: a seal (sealing.py), then the bundle. A Redis that is full, was restarted, has
evicted a value, does not answer or returns other bytes gives a BadBundle: a batch that is not there, never an error of
training.
"""

import weakref
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from flatout.cache.bundle import HEADER_BYTES, is_header_of
from flatout.cache.redis_address import RedisAddress
from flatout.cache.redis_wire import RedisConnection, RedisPool
from flatout.cache.sealing import SEAL_BYTES, EntryKey, Sealer, seal_of
from flatout.errors import BadBundle, ServiceUnavailable

_PREFIX = b"flatout:"
_TTL_SECONDS = 3600
_KEPT = 4  # blocks of memory kept for reuse


class RedisStore:
    """Writes sealed batches, and reads no others. Safe to use from several threads."""

    is_mapped = False

    def __init__(self, address: RedisAddress, entry_key: EntryKey, ttl_seconds: int = _TTL_SECONDS) -> None:
        self.address = address.text
        self._entry_key = entry_key
        self._ttl_seconds = b"%d" % ttl_seconds
        self._free: list[NDArray[np.uint8]] = []
        self._pool = RedisPool(address)

    def space(self, number: int, count: int) -> memoryview:
        return memoryview(bytearray(count))

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        bundle = space[:count]
        value = [seal_of(self._entry_key(key), bundle), bundle]
        self._ask(key, b"SET", value, b"EX", self._ttl_seconds)

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        """The bundle, of at most `most_bytes`, after its seal was verified."""
        value = self._pool.use(_PREFIX + key, lambda connection: self._get(connection, key, most_bytes))
        if value is None:
            raise BadBundle("the batch is not in Redis any more")
        return value

    def _get(self, connection: RedisConnection, key: bytes, most_bytes: int) -> memoryview | None:
        """GET into reused memory, with the seal computed while the value arrives."""
        connection.send(b"GET", _PREFIX + key)
        count = connection.value_bytes(most_bytes + SEAL_BYTES)
        if count is None:
            return None
        if count < SEAL_BYTES + HEADER_BYTES:
            raise BadBundle(f"Redis holds {count} bytes, which are no batch")
        seal, bundle = bytearray(SEAL_BYTES), self._memory(count - SEAL_BYTES)
        connection.take_into(memoryview(seal))
        sealer = Sealer(self._entry_key(key), bundle, in_threads=True)
        connection.take_into(bundle, sealer.arrived)
        connection.end_value()
        if not sealer.matches(bytes(seal)):
            raise BadBundle("the batch in Redis was not written by a holder of the token, or was changed since")
        return bundle

    def _memory(self, count: int) -> memoryview:
        """Memory that is reused when the last array on it is deleted."""
        at = next((at for at, each in enumerate(self._free) if len(each) >= count), None)
        flat = np.empty(count, np.uint8) if at is None else self._free.pop(at)
        lease = np.frombuffer(flat.data, np.uint8)
        weakref.finalize(lease, self._give_back, flat)
        return lease.data[:count]

    def _give_back(self, flat: NDArray[np.uint8]) -> None:
        if len(self._free) < _KEPT:
            self._free.append(flat)

    def verify(self, number: int, key: bytes) -> None:
        """Compares header and length only; every reader verifies the seal, so the value need not be sent here."""
        start = self._ask(key, b"GETRANGE", b"0", b"%d" % (SEAL_BYTES + HEADER_BYTES - 1))
        count = self._ask(key, b"STRLEN")
        whole = isinstance(start, bytes) and isinstance(count, int)
        if not whole or not is_header_of(start[SEAL_BYTES:], key, count - SEAL_BYTES):  # type: ignore[index,operator]
            raise BadBundle("Redis holds no batch of this key, or only a part of one")

    def make(self, number: int, count: int) -> None:
        """Nothing to do: a full Redis refuses values, or evicts some, when they are written."""

    def discard(self, number: int, key: bytes | None) -> None:
        if key is not None:
            with suppress(BadBundle):  # else it is removed when its time to live ends
                self._ask(key, b"UNLINK")

    def touch(self, key: bytes) -> None:
        with suppress(BadBundle):
            self._ask(key, b"EXPIRE", self._ttl_seconds)

    def close(self) -> None:
        self._pool.close()

    def _ask(self, key: bytes, command: bytes, *words: object) -> bytes | int | None:
        name = _PREFIX + key
        return self._pool.use(name, lambda connection: connection.ask(command, name, *words))


def check_redis(address: RedisAddress) -> None:
    """Raise ServiceUnavailable, with one line, for a wrong address or password; called when a service starts."""
    try:
        connection = RedisConnection(address)
        try:
            if (said := connection.ask(b"PING")) != b"PONG":
                raise BadBundle(f"it answered {str(said)[:40]} to PING, which no Redis does")
        finally:
            connection.close()
    except BadBundle as error:
        raise ServiceUnavailable(f"{address.text}: {error}") from None
