"""Sessions of jobs and viewers: who is admitted and what they may say; and the unix socket they come over."""

import hmac
import itertools
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.protocol.messages import (
    AnyMessage,
    Ask,
    Claim,
    Done,
    Failed,
    Hello,
    Leave,
    Message,
    Next,
    Refused,
    Register,
    Spoilt,
    Status,
    Welcome,
)
from flatout.service.protocol.specs import checked_view, stream_name
from flatout.service.protocol.wire import Wire
from flatout.service.transport.roots import NO_CODE, AllowedCode, DataRoots

_HELLO_SECONDS = 10.0
_FROM_JOBS = (Register, Next, Claim, Done, Failed, Spoilt, Leave)


@dataclass(eq=False)
class SessionRegistry:
    """Admits sessions by token, checks what they register, and passes their messages to the coordinator.

    Called by the transports (UnixServer, GrpcServer), each session from one thread at a time. `who` is the name that
    `greet` has given to a session.
    """

    coordinator: Coordinator
    token: str = field(repr=False)
    roots: DataRoots | None = None
    """None: every session may open what this user may."""
    store_password: str | None = field(default=None, repr=False)
    code: AllowedCode = NO_CODE

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: set[str] = set()
        self.joined = 0  # jobs since the start
        self.lost_at: float | None = None  # when the last job to go was lost: it may come back; None if it left
        self.stop_asked = False
        self._numbers = itertools.count(1)

    def greet(self, message: AnyMessage) -> tuple[str, Message]:
        """A name for the new session, and the answer; an empty name is a refusal."""
        if not isinstance(message, Hello):
            return "", Refused(reason="say hello first")
        if not hmac.compare_digest(message.token.encode(), self.token.encode()):
            return "", Refused(reason="wrong token; take the one that `flatout serve` has written", stop=True)
        who = f"{message.role}:{message.name}#{next(self._numbers)}"
        return who, Welcome(store=self.coordinator.store.address, store_password=self.store_password)

    def add(self, who: str) -> None:
        if who.startswith("job:"):
            with self.changed:
                self.jobs.add(who)
                self.joined += 1
                self.changed.notify_all()

    def remove(self, who: str, reason: str, left: bool) -> None:
        """`left`: it said Leave; else its connection was lost, for `reason`."""
        self.coordinator.detach(who, reason)
        with self.changed:
            self.jobs.discard(who)
            self.lost_at = None if left else time.monotonic()
            self.changed.notify_all()

    def receive(self, who: str, message: AnyMessage) -> Message | None:
        """The answer, if it is known at once; None where the coordinator will send one, or none is due."""
        if isinstance(message, Ask):
            return self._look(message)
        if who.startswith("job:") and isinstance(message, _FROM_JOBS):
            admitted = self._admitted(message) if isinstance(message, Register) else message
            if isinstance(admitted, Refused):
                return admitted
            self.coordinator.say(who, admitted)
            return None
        return Refused(reason=f"a {type(message).__name__} is not for you to say")

    def _admitted(self, message: Register) -> Message:
        """The message with its path resolved; Refused if the name is not the spec's, or data or code not allowed."""
        if stream_name(message.spec) != message.stream:
            return Refused(
                reason="the stream's name is not that of its spec; use the same version of flatout everywhere"
            )
        if (refusal := self.code.refusal(message.spec.view_values)) is not None:
            return Refused(reason=refusal)
        try:
            checked_view(message.spec)
        except FlatoutError as error:
            return Refused(reason=str(error)[:2000])
        if self.roots is None:
            return message
        path = self.roots.resolved(message.spec.data.path)
        if path is None:
            return Refused(
                reason=f"the service does not open {message.spec.data.path[:500]}, which is under none of the roots "
                "that were allowed; start it with --data and a folder or prefix that holds it"
            )
        data = message.spec.data.model_copy(update={"path": path})
        return message.model_copy(update={"spec": message.spec.model_copy(update={"data": data})})

    def _look(self, message: Ask) -> Message:
        if message.what == "clear":
            self.coordinator.clear()
        if message.what == "stop":
            self.stop()
        return Status(values=self.coordinator.status())

    def stop(self) -> None:
        """Also from a signal handler, so without the lock: Service.run looks at it several times a second."""
        self.stop_asked = True


class UnixServer:
    """Listens on a socket in a private folder, with a thread for each connection."""

    def __init__(self, sessions: SessionRegistry, path: Path) -> None:
        self._sessions = sessions
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._wires: set[Wire] = set()

    def start(self) -> None:
        self._path.unlink(missing_ok=True)  # of a service that was killed: this one holds the lock
        self._socket.bind(os.fspath(self._path))
        self._path.chmod(0o600)
        self._socket.listen(64)
        threading.Thread(target=self._accept, name="flatout-accept", daemon=True).start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()
        for wire in list(self._wires):
            wire.end()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._converse, args=(Wire(connection),), daemon=True).start()

    def _converse(self, wire: Wire) -> None:
        sessions, who, reason, left = self._sessions, "", "", False
        sending = threading.Lock()
        self._wires.add(wire)

        def send(*messages: Message) -> None:
            with sending:
                wire.send(*messages)

        try:
            who, answer = sessions.greet(wire.receive(_HELLO_SECONDS))
            if who:
                sessions.coordinator.attach(who, send)
                sessions.add(who)
            send(answer)
            while who:
                message = wire.receive(None)
                ready = sessions.receive(who, message)
                if ready is not None:
                    send(ready)
                if left := isinstance(message, Leave):
                    break
        except ServiceUnavailable as error:
            reason = str(error)
        finally:
            self._wires.discard(wire)
            wire.close()
            if who:
                sessions.remove(who, reason, left or not who.startswith("job:"))
