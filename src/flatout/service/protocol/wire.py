"""Messages over a stream socket, with deadlines."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from flatout.errors import ServiceUnavailable
from flatout.service.protocol.messages import FRAME, AnyMessage, Message, body_bytes, decode_body, encode

_STALL_SECONDS = 10.0  # messages are small: sending takes this long only to a peer that does not read


class Wire:
    """One connection. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._pending = bytearray()

    def send(self, *messages: Message) -> None:
        try:
            self._socket.settimeout(_STALL_SECONDS)  # as in _take without a deadline: the setting is shared
            self._socket.sendall(b"".join([encode(each) for each in messages]))
        except OSError as error:
            raise ServiceUnavailable(f"the connection to the service of shared batches broke: {error}") from None

    def receive(self, deadline_seconds: float | None) -> AnyMessage:
        """The next message; with None as deadline, waits until the connection ends."""
        until = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        count = body_bytes(bytes(self._take(FRAME.size, until)))
        return decode_body(bytes(self._take(count, until)))

    def receive_all(self) -> list[AnyMessage]:
        """The next message, and those that have arrived with it; without a deadline."""
        messages = [self.receive(None)]
        while self._has_whole_message():
            messages.append(self.receive(None))
        return messages

    def begin(self, message: Message, deadline_seconds: float) -> Callable[[], AnyMessage]:
        self.send(message)
        return lambda: self.receive(deadline_seconds)

    def ask(self, message: Message, deadline_seconds: float) -> AnyMessage:
        return self.begin(message, deadline_seconds)()

    def close(self) -> None:
        self.end()
        self._socket.close()

    def end(self) -> None:
        """From any thread: receiving ends with an error, here and at the other end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _has_whole_message(self) -> bool:
        frame = bytes(self._pending[: FRAME.size])
        return len(frame) == FRAME.size and len(self._pending) >= FRAME.size + body_bytes(frame)

    def _take(self, count: int, until: float | None) -> bytearray:
        while len(self._pending) < count:
            left = _STALL_SECONDS if until is None else until - time.monotonic()
            if left <= 0:
                raise ServiceUnavailable("the service of shared batches did not answer in time")
            try:
                self._socket.settimeout(left)
                received = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise ServiceUnavailable(f"the connection to the service of shared batches broke: {error}") from None
            if not received:
                raise ServiceUnavailable("the service of shared batches closed the connection")
            self._pending += received
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken
