"""The part of Redis's protocol (RESP) that batches need, for a server that is not trusted.

Lines, values and the time for an answer have limits, and nothing is allocated before its length was compared with them.
Every failure is a BadBundle: a batch that is not there.
"""

import os
import re
import socket
import ssl
import threading
import time
import weakref
from binascii import crc_hqx
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from flatout.cache.redis_address import RedisAddress
from flatout.errors import BadBundle, ConfigError
from flatout.machine.net import is_local

_DEADLINE_SECONDS = 10.0
_LEAST_BYTES_PER_SECOND = 4e6  # extends the deadline of large values
_MOST_LINE_BYTES = 1024
_MOST_SMALL_BYTES = 4096
_PIECE_BYTES = 1 << 20
_MOST_MOVES = 3  # of a key in a cluster, for one command
Result = TypeVar("Result")
Small = bytes | int | None


class _Closed(BadBundle):
    """The server closed the connection; it may have been restarted since it was opened."""


class RedisRefused(BadBundle):
    """The server answered with an error (`-...`): full, wrong type, wrong password. The connection stays usable."""


class _Moved(RedisRefused):
    """`MOVED slot host:port`: another server of the cluster has the key."""


class RedisConnection:
    """One connection, used by one thread at a time."""

    def __init__(self, address: RedisAddress) -> None:
        self._pending = bytearray()
        self._until = time.monotonic() + _DEADLINE_SECONDS
        try:
            self._socket = _connected(address)
        except (OSError, ValueError) as error:  # ValueError: a name that no server can have
            raise BadBundle(f"Redis does not answer: {error}") from None
        try:
            if address.password is not None:
                self.ask(b"AUTH", *([address.user.encode()] if address.user else []), address.password.encode())
            if address.database:
                self.ask(b"SELECT", b"%d" % address.database)
        except BaseException:
            self.close()
            raise

    def ask(self, *words: Any) -> Small:
        """One command with a small answer."""
        self.send(*words)
        return self.small()

    def send(self, *words: Any) -> None:
        """One command. A word may be a list of pieces of one value; large pieces are not copied."""
        self._allow(sum(map(_count, words)))
        head = b"*%d\r\n" % len(words)
        try:
            for word in words:
                head += b"$%d\r\n" % _count(word)
                for piece in word if isinstance(word, list) else [word]:
                    if len(piece) <= _MOST_SMALL_BYTES:
                        head += piece
                    else:
                        self._socket.sendall(head)
                        self._socket.sendall(piece)
                        head = b""
                head += b"\r\n"
            self._socket.sendall(head)
        except TimeoutError:
            raise BadBundle("Redis did not take what was sent in time") from None
        except OSError as error:
            raise _Closed(f"Redis does not answer: {error}") from None

    def small(self) -> Small:
        """The answer to a command: a line, a number, or a value of at most 4 KB."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return _number(rest)
        count = self._value_bytes(line, _MOST_SMALL_BYTES)
        return None if count is None else self._take(count)

    def value_bytes(self, most_bytes: int) -> int | None:
        """Length of the value that follows, at most `most_bytes`; None if there is none."""
        count = self._value_bytes(self._line(), most_bytes)
        self._allow(count or 0)
        return count

    def take_into(self, space: memoryview, arrived: Callable[[int], None] = lambda count: None) -> None:
        """Fill `space` with the next bytes of a value; `arrived` is called with the size of each piece."""
        done = min(len(self._pending), len(space))
        space[:done] = self._pending[:done]
        del self._pending[:done]
        arrived(done)
        while done < len(space):
            count = self._receive(space[done : done + _PIECE_BYTES])
            arrived(count)
            done += count

    def end_value(self) -> None:
        """Read the line break that ends a value."""
        ending = bytearray(2)
        self.take_into(memoryview(ending))
        if ending != b"\r\n":
            raise BadBundle("Redis sent a value that does not end where it said")

    def close(self) -> None:
        self._socket.close()

    def _take(self, count: int) -> bytes:
        taken = bytearray(count)
        self.take_into(memoryview(taken))
        self.end_value()
        return bytes(taken)

    def _value_bytes(self, line: bytes, most_bytes: int) -> int | None:
        """RESP: `$5`, `$-1`, `_`, or `-` and an error."""
        if line[:1] == b"-":
            raise _refusal(line[1:].decode("utf-8", "replace"))
        if line in (b"$-1", b"_"):
            return None
        if line[:1] != b"$":
            raise BadBundle(f"Redis answered {line[:20]!r}, which is no answer to what was asked")
        count = _number(line[1:])
        if not 0 <= count <= most_bytes:
            raise BadBundle(f"Redis says that a value has {count} bytes, where at most {most_bytes} belong")
        return count

    def _line(self) -> bytes:
        while (end := self._pending.find(b"\r\n")) < 0:
            if len(self._pending) > _MOST_LINE_BYTES:
                raise BadBundle(f"Redis sent a line of over {_MOST_LINE_BYTES} bytes")
            received = memoryview(bytearray(_MOST_SMALL_BYTES))
            self._pending += received[: self._receive(received)]
        line = bytes(self._pending[:end])
        del self._pending[: end + 2]
        return line

    def _receive(self, space: memoryview) -> int:
        try:
            self._socket.settimeout(max(0.001, self._until - time.monotonic()))
            count = self._socket.recv_into(space)
        except TimeoutError:
            raise BadBundle("Redis did not answer in time") from None
        except OSError as error:
            raise _Closed(f"Redis does not answer: {error}") from None
        if not count:
            raise _Closed("Redis does not answer: the connection was closed")
        return count

    def _allow(self, count: int) -> None:
        """Set the deadline for the next `count` bytes, however many pieces they come in."""
        seconds = _DEADLINE_SECONDS + count / _LEAST_BYTES_PER_SECOND
        self._until = time.monotonic() + seconds
        self._socket.settimeout(seconds)


class RedisPool:
    """Idle connections by server; for a cluster also which server has which slot of the keys."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._idle: dict[RedisAddress, list[RedisConnection]] = {}
        self._owners: dict[int, RedisAddress] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.close = weakref.finalize(self, _close, self._idle)

    def use(self, key: bytes, command: Callable[[RedisConnection], Result]) -> Result:
        """Run `command` on a connection; again if an idle one turns out closed, or a cluster names another server."""
        slot = crc_hqx(key, 0) % 16384
        for _ in range(_MOST_MOVES):
            try:
                return self._use_at(self._owners.get(slot, self._address), command)
            except _Moved as moved:
                self._owners[slot] = _moved_to(self._address, str(moved))
            except RedisRefused:
                raise
            except BadBundle:
                self._owners.pop(slot, None)  # next time ask the first server again: this one may be gone
                raise
        raise BadBundle(f"the Redis cluster sent a batch from server to server {_MOST_MOVES} times")

    def _use_at(self, address: RedisAddress, command: Callable[[RedisConnection], Result]) -> Result:
        idle = self._taken(address)
        if idle is not None:
            with suppress(_Closed):
                return self._finish(address, idle, command)
        return self._finish(address, RedisConnection(address), command)

    def _finish(
        self, address: RedisAddress, connection: RedisConnection, command: Callable[[RedisConnection], Result]
    ) -> Result:
        try:
            result = command(connection)
        except RedisRefused:
            self._give_back(address, connection)
            raise
        except BaseException:  # the rest of the answer would be taken for the next one
            connection.close()
            raise
        self._give_back(address, connection)
        return result

    def _taken(self, address: RedisAddress) -> RedisConnection | None:
        with self._lock:
            if self._pid != os.getpid():  # after a fork: the parent uses these connections
                self._idle.clear()
                self._pid = os.getpid()
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _give_back(self, address: RedisAddress, connection: RedisConnection) -> None:
        with self._lock:
            self._idle.setdefault(address, []).append(connection)


def _close(idle: dict[RedisAddress, list[RedisConnection]]) -> None:
    for each in [each for waiting in idle.values() for each in waiting]:
        each.close()
    idle.clear()


def _refusal(said: str) -> RedisRefused:
    return _Moved(said) if said.startswith("MOVED ") else RedisRefused(f"Redis refused: {said[:300]}")


def _moved_to(address: RedisAddress, said: str) -> RedisAddress:
    """The server that a MOVED names; refused unless this is a cluster and the password may be sent there."""
    host, _, port = said.split(" ")[-1].rpartition(":")
    if not address.is_cluster or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise BadBundle(
            f"Redis refused: {said[:300]}; a cluster's address begins with redis+cluster:// or rediss+cluster://"
        )
    if address.password is not None and not address.tls and host and not is_local(host):
        raise BadBundle(f"the Redis cluster names the server {host}, and the password would go there in clear")
    return replace(address, host=host or address.host, port=int(port))


def _connected(address: RedisAddress) -> socket.socket:
    if address.path:
        plain = socket.socket(socket.AF_UNIX)
        try:
            plain.settimeout(_DEADLINE_SECONDS)
            plain.connect(address.path)
        except OSError:
            plain.close()
            raise
        return plain
    plain = socket.create_connection((address.host, address.port), _DEADLINE_SECONDS)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return _tls(address.ca).wrap_socket(plain, server_hostname=address.host) if address.tls else plain
    except BaseException:
        plain.close()
        raise


@lru_cache
def _tls(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # SSLError too
        raise ConfigError(f"the certificate authority {ca} cannot be read: {error}") from None


def _count(word: Any) -> int:
    return sum(map(len, word)) if isinstance(word, list) else len(word)


def _number(digits: bytes) -> int:
    if not digits.lstrip(b"-").isdigit() or len(digits) > 20:
        raise BadBundle(f"Redis answered {digits[:20]!r} where a number belongs")
    try:
        return int(digits)
    except ValueError:
        raise BadBundle(f"Redis answered {digits[:20]!r} where a number belongs") from None
