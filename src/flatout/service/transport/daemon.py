"""The embedded service of one user on one machine: the first job starts it, the last one to leave ends it.

It is found through a socket in the user's runtime folder. The process that holds the lock there is the service; files
that a killed one left behind are removed by the next.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.service.coordinator.policy import Policy
from flatout.service.protocol.messages import Hello, Refused, Welcome
from flatout.service.protocol.wire import Wire
from flatout.service.transport.paths import ServicePaths
from flatout.service.transport.roots import AllowedCode
from flatout.service.transport.service import RemoteOptions, Service, default_capacity_bytes
from flatout.service.transport.stores import StoreAccess

_FIRST_ANSWER_SECONDS = 20.0


def connect(paths: ServicePaths, role: str, name: str, deadline_seconds: float = 2.0) -> tuple[Wire, StoreAccess]:
    """A connection to the running service, as a `role` of Hello, and access to its store."""
    sock = socket.socket(socket.AF_UNIX)
    wire = Wire(sock)
    try:
        sock.settimeout(deadline_seconds)
        sock.connect(os.fspath(paths.socket))
        token = paths.token.read_text(encoding="ascii")
        answer = wire.ask(Hello.model_validate({"token": token, "role": role, "name": name}), deadline_seconds)
        if isinstance(answer, Welcome):
            return wire, StoreAccess(answer.store, token, answer.store_password)
        reason = answer.reason if isinstance(answer, Refused) else f"it answered with {type(answer).__name__}"
        raise ServiceUnavailable(f"the service of shared batches refused: {reason}")
    except OSError as error:
        wire.close()
        raise ServiceUnavailable(f"no service of shared batches at {paths.socket}: {error.strerror}") from None
    except ServiceUnavailable:
        wire.close()
        raise


def connect_or_start(
    paths: ServicePaths, name: str, capacity_bytes: int | None, deadline_seconds: float = _FIRST_ANSWER_SECONDS
) -> tuple[Wire, StoreAccess]:
    """Connect as a job; start a service where there is none. Several jobs may do so at once: one gets the lock."""
    deadline = time.monotonic() + deadline_seconds
    started = None
    while True:
        try:
            return connect(paths, "job", name)
        except ServiceUnavailable:
            if time.monotonic() > deadline:
                raise
        status = None if started is None else _exit_status(started)
        if started is None or status == 0:  # it found another one running, which was about to end
            started = start_daemon(paths, capacity_bytes)
        elif status is not None:
            said = paths.log.read_text(encoding="utf-8", errors="replace").strip()
            raise ServiceUnavailable(f"the service of shared batches could not start: {said[-300:]}")
        time.sleep(0.05)


def start_daemon(paths: ServicePaths, capacity_bytes: int | None) -> int:
    """Start a service; its process id. In a session of its own, so that Ctrl-C in this terminal does not end it."""
    for pid in list(_started):
        _exit_status(pid)
    log, flags = os.fspath(paths.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
    ]
    command = [sys.executable, "-m", "flatout.service.transport.daemon", str(paths.folder), str(capacity_bytes or 0)]
    pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
    _started.add(pid)
    return pid


def _inheritable() -> list[int]:
    """What a child would hold open beside its three, sockets of gloo among it: as long as a service has them too, the
    death of a rank closes no connection, and the other ranks do not notice it."""
    found: list[int] = []
    with suppress(FileNotFoundError):  # no /proc: as before
        for descriptor in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):  # the one that listed them is closed again
                if descriptor > 2 and os.get_inheritable(descriptor):
                    found.append(descriptor)
    return found


_started: set[int] = set()  # process ids whose exit status was not collected yet


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
        policy = Policy(int(capacity) or default_capacity_bytes())
        service = Service(ServicePaths(Path(folder)), policy, remote=RemoteOptions(code=AllowedCode(anything=True)))
    except ServiceUnavailable:
        sys.exit(0)  # another one has the lock: the job connects to that
    except FlatoutError as error:
        sys.exit(str(error))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: service.sessions.stop())
    service.run(until_empty=True)


if __name__ == "__main__":
    main()
