"""A job's connection to the service: joining, leaving, and how long to go without it."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from flatout.cache.batch_store import BatchStore
from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.service.client.batches import StreamOrder
from flatout.service.client.decisions import rejoin_backoff_seconds
from flatout.service.client.stats import SharingStats
from flatout.service.protocol.messages import AnyMessage, Leave, Message, Refused, Register, Registered
from flatout.service.protocol.specs import AnotherDataset

ANSWER_SECONDS = 5.0
"""How long an answer may take, beyond the time for which the service may hold it back."""


class ServiceConnection(Protocol):
    """Messages to and from the service: a `Wire` on this machine, a `GrpcConnection` to another."""

    def send(self, message: Message) -> None: ...

    def begin(self, message: Message, deadline_seconds: float) -> Callable[[], AnyMessage]:
        """Send a request. What is returned waits for the answer, and must be called before the next request."""
        ...

    def ask(self, message: Message, deadline_seconds: float) -> AnyMessage:
        """`begin`, and wait for the answer."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class JoinSettings:
    """What a job joins the service with."""

    register: Register
    connect: Callable[[bool], tuple[ServiceConnection, BatchStore]]
    """Opens a connection and the store of batches; the argument says whether to wait for a service to start."""
    remember: Callable[[int, int], None]
    """Called with (epoch, index) of the batch at position 0, which a resumed run must begin with too."""


class ServiceSession:
    """The connection while there is one. A service that fails is left alone, longer after each failure in a row."""

    def __init__(self, settings: JoinSettings, stats: SharingStats) -> None:
        self.connection: ServiceConnection | None = None
        self.store: BatchStore | None = None
        self.notes: list[str] = []
        self.order = StreamOrder(settings.register)
        self.rejoin_at = 0.0
        self.failures = 0  # in a row: reset by the first batch that could be used
        self._settings = settings
        self._stats = stats
        self._connected_at = 0.0

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    @property
    def connected_seconds(self) -> float:
        """Of the connection that is open now."""
        return time.monotonic() - self._connected_at if self._connected_at else 0.0

    def join(self, position: int, wait: bool) -> bool:
        """Connect and register; whether it worked. Raises AnotherDataset where the job must stop."""
        try:
            self.connection, self.store = self._settings.connect(wait)
            register = self.order.register.model_copy(update={"position": position})
            answer = self.connection.ask(register, ANSWER_SECONDS)
            if not isinstance(answer, Registered):
                raise refusal(answer)
        except ServiceUnavailable as error:
            self.back_off(str(error))
            return False
        except AnotherDataset:
            self.hang_up()
            raise
        self._joined(answer, first=wait)
        return True

    def _joined(self, answer: Registered, first: bool) -> None:
        self._stats.rejoined += not first
        self._connected_at = time.monotonic()
        # the order is fixed by the first answer: a job that rejoins must not start anywhere else
        begins = {"epoch": answer.epoch, "index": answer.index, "anywhere": False}
        self.order.register = self.order.register.model_copy(update=begins)
        self._settings.remember(answer.epoch, answer.index)
        if answer.note is not None:
            self.notes.append(f"shared: {answer.note}")
        if first:
            self.notes.append(f"shared: batches are shared by {answer.jobs} job(s)")

    def back_off(self, reason: str) -> None:
        """Hang up, and do not try again for a while."""
        self._stats.outages += self._connected_at > 0
        self._stats.last_trouble = reason
        self.failures += 1
        self.rejoin_at = time.monotonic() + rejoin_backoff_seconds(self.failures)
        self.hang_up()

    def leave(self) -> None:
        if self.connection is not None:
            with suppress(ServiceUnavailable):  # gone already
                self.connection.send(Leave())
            self.hang_up()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        self._stats.connected_seconds += self.connected_seconds
        self._connected_at = 0.0
        self._stats.close_bill()

    def after_fork(self) -> None:
        """The connection is the parent's: forget it without sending Leave, and join again at once."""
        self.connection = None
        self._connected_at = self.rejoin_at = 0.0


def refusal(answer: AnyMessage) -> FlatoutError:
    """What to raise for an answer that is not the one asked for."""
    reason = answer.reason if isinstance(answer, Refused) else f"it answered with a {type(answer).__name__}"
    if isinstance(answer, Refused) and answer.stop:
        return AnotherDataset(f"the service of shared batches and this job do not have the same data: {reason}")
    return ServiceUnavailable(reason)
