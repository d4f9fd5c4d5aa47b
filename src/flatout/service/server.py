"""Connections to the coordinator: the same conversation, whatever they come over."""

import hmac
import itertools
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from flatout.errors import ServiceUnavailable
from flatout.service.coordinator import Coordinator
from flatout.service.messages import (
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
from flatout.service.wire import Wire

_HELLO_SECONDS = 10.0
_FROM_JOBS = (Register, Next, Claim, Done, Failed, Spoilt, Leave)


class Reception:
    """Knows the token, and who is here. Transports bring it connections and what is said on them."""

    def __init__(self, coordinator: Coordinator, token: str) -> None:
        self.coordinator = coordinator
        self.changed = threading.Condition()
        self.jobs: set[str] = set()
        self.joined = 0  # jobs that ever came
        self.lost_at: float | None = None  # when the last one to go went without a word: it may come back
        self.stop_asked = False
        self._token = token
        self._numbers = itertools.count(1)

    def greet(self, message: AnyMessage) -> tuple[str, Message]:
        """A name for whoever says hello, and the answer; an empty name is a refusal."""
        if not isinstance(message, Hello):
            return "", Refused(reason="say hello first")
        if not hmac.compare_digest(message.token.encode(), self._token.encode()):
            return "", Refused(reason="wrong token; take the one that `flatout serve` has written", stop=True)
        who = f"{message.role}:{message.name}#{next(self._numbers)}"
        return who, Welcome(store=self.coordinator.store.address)

    def came(self, who: str) -> None:
        if who.startswith("job:"):
            with self.changed:
                self.jobs.add(who)
                self.joined += 1
                self.changed.notify_all()

    def went(self, who: str, reason: str, left: bool) -> None:
        self.coordinator.detach(who, reason)
        with self.changed:
            self.jobs.discard(who)
            self.lost_at = None if left else time.monotonic()
            self.changed.notify_all()

    def hear(self, who: str, message: AnyMessage) -> Message | None:
        """An answer that is ready at once; others are sent by the coordinator."""
        if isinstance(message, Ask):
            return self._look(message)
        if who.startswith("job:") and isinstance(message, _FROM_JOBS):
            self.coordinator.say(who, message)
            return None
        return Refused(reason=f"a {type(message).__name__} is not for you to say")

    def _look(self, message: Ask) -> Message:
        if message.what == "clear":
            self.coordinator.clear()
        if message.what == "stop":
            self.stop()
        return Status(values=self.coordinator.status())

    def stop(self) -> None:
        """Also from a signal handler: whoever waits looks at this a few times a second."""
        self.stop_asked = True


class UnixServer:
    """Listens on a socket in a private folder; a thread for each connection."""

    def __init__(self, reception: Reception, path: Path) -> None:
        self._reception = reception
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._wires: set[Wire] = set()

    def start(self) -> None:
        self._path.unlink(missing_ok=True)  # of an owner that is dead: ours is the lock
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
        reception, who, reason, left = self._reception, "", "", False
        sending = threading.Lock()
        self._wires.add(wire)

        def send(*messages: Message) -> None:
            with sending:
                wire.send(*messages)

        try:
            who, answer = reception.greet(wire.receive(_HELLO_SECONDS))
            if who:
                reception.coordinator.attach(who, send)
                reception.came(who)
            send(answer)
            while who:
                message = wire.receive(None)
                ready = reception.hear(who, message)
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
                reception.went(who, reason, left or not who.startswith("job:"))
