"""Batches in a Redis or Valkey: for jobs and producers on several machines. Its contents are never trusted.

A batch is one value under a key of its own, with a time to live. Whatever Redis cannot do - it is full, it restarted,
it forgot, it does not answer - is a batch that is not there, never an error of training.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import redis
from numpy.typing import NDArray
from redis.backoff import NoBackoff
from redis.retry import Retry

from flatout.cache.bundle import HEADER_BYTES, is_header_of
from flatout.errors import BadBundle, ServiceUnavailable

_PREFIX = b"flatout:"
_TTL_SECONDS = 3600
_DEADLINE_SECONDS = 10.0
_KEPT = 4  # values' worth of memory


class RedisStore:
    """`redis://[:password@]host:port/db`, `unix:///path`, or `redis+cluster://host:port` for a cluster."""

    is_mapped = False

    def __init__(self, address: str, ttl_seconds: int = _TTL_SECONDS) -> None:
        self.address = address
        self._ttl_seconds = ttl_seconds
        self._free: list[NDArray[np.uint8]] = []
        self._client = _connect(address)

    def space(self, number: int, count: int) -> memoryview:
        return memoryview(bytearray(count))

    def commit(self, number: int, key: bytes, space: memoryview, count: int) -> None:
        with _answering():
            self._client.set(_PREFIX + key, space[:count], ex=self._ttl_seconds)

    def read(self, number: int, key: bytes) -> memoryview:
        with _answering():
            value = self._get(_PREFIX + key)
        if value is None:
            raise BadBundle("the batch is not in Redis any more")
        return value

    def _get(self, name: bytes) -> memoryview | None:
        """GET straight into memory that was used before: the client's own reader copies a value three times."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is None:  # a cluster: the client knows which node to ask
            value = self._client.get(name)
            return None if value is None else memoryview(value)
        connection = pool.get_connection()
        try:
            connection.send_command("GET", name)
            count = _value_bytes(connection._sock)
            if count is None:
                return None
            memory = self._memory(count + 2)
            received = 0
            while received < count + 2:
                received += _some(connection._sock.recv_into(memory[received:]))
            return memory[:count]
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def _memory(self, count: int) -> memoryview:
        """Comes back when the last array on it is gone."""
        at = next((at for at, each in enumerate(self._free) if len(each) >= count), None)
        flat = np.empty(count, np.uint8) if at is None else self._free.pop(at)
        lease = np.frombuffer(flat.data, np.uint8)
        weakref.finalize(lease, self._give_back, flat)
        return lease.data[:count]

    def _give_back(self, flat: NDArray[np.uint8]) -> None:
        if len(self._free) < _KEPT:
            self._free.append(flat)

    def verify(self, number: int, key: bytes) -> None:
        """Header and length; every reader verifies the rest, at its own end of the network."""
        with _answering():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.getrange(_PREFIX + key, 0, HEADER_BYTES - 1)
            pipeline.strlen(_PREFIX + key)
            header, count = pipeline.execute()
        if not is_header_of(header, key, count):
            raise BadBundle("Redis holds no batch of this key, or only a part of one")

    def make(self, number: int, count: int) -> None:
        """Room is Redis's own business: it refuses, or evicts, when it is full."""

    def discard(self, number: int, key: bytes | None) -> None:
        if key is not None:
            try:
                with _answering():
                    self._client.unlink(_PREFIX + key)
            except (ServiceUnavailable, BadBundle):
                return  # its time to live ends

    def touch(self, key: bytes) -> None:
        try:
            with _answering():
                self._client.expire(_PREFIX + key, self._ttl_seconds)
        except (ServiceUnavailable, BadBundle):
            return

    def close(self) -> None:
        self._client.close()


def _value_bytes(sock: Any) -> int | None:
    """Length of the value that follows; None if there is none. RESP: `$5`, `$-1`, `_`, or `-` and an error."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        received = sock.recv(1)
        _some(len(received))
        line += received
    if line[:1] == b"$" and line[1:2] != b"-":
        return int(line[1:])
    if line[:1] == b"-":
        raise redis.ResponseError(line[1:].decode(errors="replace").strip())
    return None


def _some(count: int) -> int:
    if not count:
        raise redis.ConnectionError("the connection was closed")
    return count


def _connect(address: str) -> Any:
    options: dict[str, Any] = {
        "socket_timeout": _DEADLINE_SECONDS, "socket_connect_timeout": _DEADLINE_SECONDS, "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 1),
    }  # fmt: skip
    if address.startswith("redis+cluster://"):
        return redis.RedisCluster.from_url(address.replace("+cluster", "", 1), **options)
    return redis.Redis.from_url(address, **options)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:  # OOM with noeviction, a wrong type, a wrong password
        raise BadBundle(f"Redis refused: {error}") from None
    except (redis.RedisError, OSError) as error:
        raise BadBundle(f"Redis does not answer: {error}") from None


def check_redis(address: str) -> None:
    """One line for a wrong address or password, before anything depends on it."""
    try:
        with _answering():
            _connect(address).ping()
    except BadBundle as error:
        raise ServiceUnavailable(f"{address.rsplit('@', 1)[-1]}: {error}") from None
