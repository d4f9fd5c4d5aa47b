"""The embedded service of one user on one machine: the first job starts it, the last one to leave ends it.

It is found through a socket in the user's runtime folder. Who holds the lock there is the service; what a dead one
left behind is cleaned up by the next.
"""

import fcntl
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cache.batch_store import OwnStore
from flatout.cache.redis_address import RedisAddress
from flatout.cache.shared_memory import OwnedStore, free_bytes, private_folder, shared_root
from flatout.errors import ConfigError, FlatoutError, ServiceUnavailable
from flatout.machine.budgets import memory_budget_bytes, usable_cores
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.coordinator.policy import Policy
from flatout.service.producers.local_producers import LocalProducers
from flatout.service.protocol.extras import needs
from flatout.service.protocol.messages import Hello, Joined, Refused, Welcome
from flatout.service.protocol.wire import Wire
from flatout.service.transport.roots import DataRoots
from flatout.service.transport.server import Reception, UnixServer
from flatout.service.transport.stores import StoreAccess

if TYPE_CHECKING:  # what needs an extra, or time to import, is imported when it is used
    from flatout.service.producers.functions import Caller, CallPool
    from flatout.service.transport.remote import GrpcServer

_TICK_SECONDS = 0.25
_STARTING = "producers that are being started"
_EMPTY_SECONDS = 30.0  # a service that nobody comes to ends
_FIRST_ANSWER_SECONDS = 20.0
_MEMORY_SHARE = 0.5  # of the free memory that all of flatout may take


@dataclass(frozen=True)
class Place:
    """Where the service of this user is found."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "shared.sock"

    @property
    def lock(self) -> Path:
        return self.folder / "shared.lock"

    @property
    def token(self) -> Path:
        return self.folder / "shared.token"


def runtime_place() -> Place:
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "flatout" if base else Path(tempfile.gettempdir()) / f"flatout-{os.getuid()}"
    return Place(private_folder(folder))


def default_capacity_bytes() -> int:
    """A quarter of the free memory, and at most half of what /dev/shm has left."""
    return int(min(memory_budget_bytes() * _MEMORY_SHARE, free_bytes(shared_root()) * 0.5))


@dataclass(frozen=True)
class Certificate:
    """Of a service, as files in PEM: the certificate with those that signed it, and its private key."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Beyond:
    """What a service needs beyond this machine; see `flatout serve --help`."""

    listen: str | None = None
    redis: RedisAddress | None = None
    callers: tuple[Callable[[StoreAccess], "Caller"], ...] = ()
    roots: DataRoots | None = None
    """Data that may be opened; None is everything, and not for a service that listens."""
    tls: Certificate | None = None


class Service:
    """Everything that runs: store, coordinator, producers, sockets."""

    def __init__(
        self, place: Place, policy: Policy, threads: int | None = None, trace: Path | None = None,
        beyond: Beyond = Beyond(),  # noqa: B008 (a frozen value)
    ) -> None:  # fmt: skip
        self._lock = _take(place.lock)
        token = secrets.token_hex(16)
        _write_private(place.token, token)
        store, redis = _open_store(beyond.redis, token), beyond.redis
        self._access = StoreAccess(store.address, token)
        if redis is not None:
            self._access = replace(self._access, password=redis.password, tls_ca=redis.ca)
        self.coordinator = Coordinator(policy, store, trace)
        self.reception = Reception(self.coordinator, token, beyond.roots, self._access.password)
        hands = 0 if beyond.callers else threads or usable_cores() + 1
        self.producers = LocalProducers(self.coordinator, hands, self._access)
        self._pools: list[CallPool] = []
        self._callers = beyond.callers
        self.remote = None if beyond.listen is None else _grpc_server(self.reception, beyond)
        self._server = UnixServer(self.reception, place.socket)

    def run(self, until_empty: bool) -> dict[str, Any]:
        """Serve until stopped, or (embedded) until the last job has left; the figures at the end."""
        if self._callers:
            self.coordinator.say(_STARTING, Joined(slots=0))  # so that jobs wait a moment for the first producer
        self.producers.start()
        self._server.start()
        if self.remote is not None:
            self.remote.start()
        began = time.monotonic()
        try:
            self._start_callers()
            while not self.reception.stop_asked:
                with self.reception.changed:
                    self.reception.changed.wait(_TICK_SECONDS)
                self.coordinator.tick()
                if self.remote is not None:
                    self.remote.drop_silent()
                if until_empty and self._is_over(time.monotonic() - began):
                    break
            return self.coordinator.status()
        finally:
            self._server.close()
            if self.remote is not None:
                self.remote.close()
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
        self.coordinator.detach(_STARTING, "")

    def _is_over(self, seconds: float) -> bool:
        """The last job has left, or nobody has come, or come back, for a while."""
        reception = self.reception
        if reception.jobs:
            return False
        if not reception.joined:
            return seconds > _EMPTY_SECONDS
        return reception.lost_at is None or time.monotonic() - reception.lost_at > _EMPTY_SECONDS


def _open_store(redis: RedisAddress | None, token: str) -> OwnStore:
    if redis is None:
        return OwnedStore(shared_root())
    from flatout.cache.redis_store import RedisStore, check_redis
    from flatout.cache.sealing import entry_keys

    check_redis(redis)
    return RedisStore(redis, entry_keys(token))


def _grpc_server(reception: Reception, beyond: Beyond) -> "GrpcServer":
    with needs("service"):
        from flatout.service.transport.remote import GrpcServer

    if beyond.roots is None:
        raise ConfigError(
            "a service that listens opens only data that was allowed; give --data ROOT, as often as needed"
        )
    return GrpcServer(reception, beyond.listen or "", beyond.tls)


def _take(path: Path) -> int:
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


def connect(place: Place, role: str, name: str, deadline_seconds: float = 2.0) -> tuple[Wire, StoreAccess]:
    """A connection to the service that is there, and its store."""
    sock = socket.socket(socket.AF_UNIX)
    wire = Wire(sock)
    try:
        sock.settimeout(deadline_seconds)
        sock.connect(os.fspath(place.socket))
        token = place.token.read_text(encoding="ascii")
        answer = wire.ask(Hello.model_validate({"token": token, "role": role, "name": name}), deadline_seconds)
        if isinstance(answer, Welcome):
            return wire, StoreAccess(answer.store, token, answer.store_password)
        reason = answer.reason if isinstance(answer, Refused) else f"it answered with {type(answer).__name__}"
        raise ServiceUnavailable(f"the service of shared batches refused: {reason}")
    except OSError as error:
        wire.close()
        raise ServiceUnavailable(f"no service of shared batches at {place.socket}: {error.strerror}") from None
    except ServiceUnavailable:
        wire.close()
        raise


def connect_or_start(
    place: Place, name: str, capacity_bytes: int | None, deadline_seconds: float = _FIRST_ANSWER_SECONDS
) -> tuple[Wire, StoreAccess]:
    """The service that is there, or a new one; several jobs may try at once, and one of them wins."""
    deadline = time.monotonic() + deadline_seconds
    started = None
    while True:
        try:
            return connect(place, "job", name)
        except ServiceUnavailable:
            if time.monotonic() > deadline:
                raise
        status = None if started is None else _exit_status(started)
        if started is None or status == 0:  # it found another one, which was about to end
            started = start_daemon(place, capacity_bytes)
        elif status is not None:
            said = (place.folder / "shared.log").read_text(encoding="utf-8", errors="replace").strip()
            raise ServiceUnavailable(f"the service of shared batches could not start: {said[-300:]}")
        time.sleep(0.05)


def start_daemon(place: Place, capacity_bytes: int | None) -> int:
    """Detached, so that Ctrl-C in the first job's terminal does not take it from the others; its process id."""
    for pid in list(_started):
        _exit_status(pid)
    log, flags = os.fspath(place.folder / "shared.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    command = [sys.executable, "-m", "flatout.service.transport.daemon", str(place.folder), str(capacity_bytes or 0)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
    _started.add(pid)
    return pid


_started: set[int] = set()  # not collected yet


def _exit_status(pid: int) -> int | None:
    """None while it runs."""
    if pid not in _started:
        return 0
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # collected by somebody else in this process, or started before a fork
        ended, status = pid, 0
    if not ended:
        return None
    _started.discard(pid)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    folder, capacity = sys.argv[1:]
    try:
        service = Service(Place(Path(folder)), Policy(int(capacity) or default_capacity_bytes()))
    except ServiceUnavailable:
        sys.exit(0)  # another one was quicker: the job finds it
    except FlatoutError as error:
        sys.exit(str(error))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: service.reception.stop())
    service.run(until_empty=True)


if __name__ == "__main__":
    main()
