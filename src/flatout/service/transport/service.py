"""Everything that one running service consists of: store, coordinator, producers and listeners."""

import fcntl
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cache.batch_store import OwnStore
from flatout.cache.redis_address import RedisAddress
from flatout.cache.shared_memory import OwnedStore, shared_root
from flatout.errors import ConfigError, ServiceUnavailable
from flatout.machine.budgets import free_bytes, memory_budget_bytes, usable_cores
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.coordinator.policy import Policy
from flatout.service.producers.local_producers import LocalProducers
from flatout.service.protocol.extras import needs
from flatout.service.protocol.messages import Joined
from flatout.service.transport.paths import ServicePaths
from flatout.service.transport.roots import NO_CODE, AllowedCode, DataRoots
from flatout.service.transport.server import SessionRegistry, UnixServer
from flatout.service.transport.stores import StoreAccess

if TYPE_CHECKING:  # needs an extra, or time to import: imported where it is used
    from flatout.service.producers.functions import Caller, CallPool
    from flatout.service.transport.remote import GrpcServer

_TICK_SECONDS = 0.25
_STARTING_PRODUCER = "producers that are being started"
_EMPTY_SECONDS = 30.0  # an embedded service without jobs ends after this time
_MEMORY_SHARE = 0.5  # of the free memory that all of flatout may take


def default_capacity_bytes() -> int:
    """A quarter of the free memory, and at most half of what /dev/shm has left."""
    return int(min(memory_budget_bytes() * _MEMORY_SHARE, free_bytes(shared_root()) * 0.5))


@dataclass(frozen=True)
class Certificate:
    """Of a service, as PEM files."""

    chain: Path
    """The certificate, followed by those of the authorities that signed it."""
    key: Path


@dataclass(frozen=True)
class RemoteOptions:
    """What a service for several machines needs; see `flatout serve --help`."""

    listen: str | None = None
    """HOST:PORT for gRPC; None listens on the unix socket only."""
    redis: RedisAddress | None = None
    """Where batches are kept; None is mapped memory of this machine."""
    callers: tuple[Callable[[StoreAccess], "Caller"], ...] = ()
    """Makers of producers elsewhere (Ray, Lambda); with any of them, no producer processes are started here."""
    roots: DataRoots | None = None
    """Data that may be opened. None is everything, and is refused with `listen`."""
    tls: Certificate | None = None
    code: AllowedCode = NO_CODE
    """Transforms of users that may be run."""


_THIS_MACHINE = RemoteOptions()


class Service:
    """Constructed while holding the lock of `paths`; a second service of the same user is a ServiceUnavailable."""

    def __init__(
        self,
        paths: ServicePaths,
        policy: Policy,
        threads: int | None = None,
        trace: Path | None = None,
        remote: RemoteOptions = _THIS_MACHINE,
    ) -> None:
        self._lock = _lock(paths.lock)
        token = secrets.token_hex(16)
        _write_private(paths.token, token)
        store, redis = _open_store(remote.redis, token), remote.redis
        self._access = StoreAccess(store.address, token)
        if redis is not None:
            self._access = replace(self._access, password=redis.password, tls_ca=redis.ca)
        self.coordinator = Coordinator(policy, store, trace)
        self.sessions = SessionRegistry(self.coordinator, token, remote.roots, self._access.password, remote.code)
        local_threads = 0 if remote.callers else threads or usable_cores() + 1
        self.producers = LocalProducers(self.coordinator, local_threads, self._access)
        self._pools: list[CallPool] = []
        self._callers = remote.callers
        self._grpc = None if remote.listen is None else _grpc_server(self.sessions, remote)
        self._unix = UnixServer(self.sessions, paths.socket)

    def run(self, until_empty: bool) -> dict[str, Any]:
        """Serve until stopped, or (embedded) until the last job has left; the status at the end."""
        if self._callers:
            self.coordinator.say(_STARTING_PRODUCER, Joined(slots=0))  # else jobs would be told that there is none
        self.producers.start()
        self._unix.start()
        if self._grpc is not None:
            self._grpc.start()
        began = time.monotonic()
        try:
            self._start_callers()
            while not self.sessions.stop_asked:
                with self.sessions.changed:
                    self.sessions.changed.wait(_TICK_SECONDS)
                self.coordinator.tick()
                if self._grpc is not None:
                    self._grpc.drop_silent()
                if until_empty and self._is_over(time.monotonic() - began):
                    break
            return self.coordinator.status()
        finally:
            self._close()

    def _close(self) -> None:
        self._unix.close()
        if self._grpc is not None:
            self._grpc.close()
        self.producers.close()
        for pool in self._pools:
            pool.close()
        self.coordinator.close()
        os.close(self._lock)

    def _start_callers(self) -> None:
        from flatout.service.producers.functions import CallPool

        for make in self._callers:
            self._pools.append(CallPool(self.coordinator, make(self._access)))
            self._pools[-1].start()
        self.coordinator.detach(_STARTING_PRODUCER, "")

    def _is_over(self, seconds: float) -> bool:
        """The last job has left; or none has come, or a lost one has not come back, for a while."""
        sessions = self.sessions
        if sessions.jobs:
            return False
        if not sessions.joined:
            return seconds > _EMPTY_SECONDS
        return sessions.lost_at is None or time.monotonic() - sessions.lost_at > _EMPTY_SECONDS


def _open_store(redis: RedisAddress | None, token: str) -> OwnStore:
    if redis is None:
        return OwnedStore(shared_root())
    from flatout.cache.redis_store import RedisStore, check_redis
    from flatout.cache.sealing import entry_keys

    check_redis(redis)
    return RedisStore(redis, entry_keys(token))


def _grpc_server(sessions: SessionRegistry, remote: RemoteOptions) -> "GrpcServer":
    with needs("service"):
        from flatout.service.transport.remote import GrpcServer

    if remote.roots is None:
        raise ConfigError(
            "a service that listens opens only data that was allowed; give --data ROOT, as often as needed"
        )
    return GrpcServer(sessions, remote.listen or "", remote.tls)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ServiceUnavailable(
            f"another service of this user holds {path}; look at it with `flatout cache`, end it with "
            "`flatout cache stop`"
        ) from None
    return fd


def _write_private(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
    temporary.replace(path)
