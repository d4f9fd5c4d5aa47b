"""A producer process's conversation: which answers travel together."""

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.errors import ServiceUnavailable
from flatout.service.producers import producer
from flatout.service.protocol.messages import Done, Failed, Joined, Message, Produce
from flatout.service.protocol.wire import Wire

ONE, OTHER = "a" * 64, "b" * 64


def order(lease: int, stream: str = ONE) -> Produce:
    return Produce(lease=lease, stream=stream, epoch=0, index=lease, buffer=lease, bytes=1)


class Talk:
    """The coordinator's end; what `make` answers is up to the test."""

    def __init__(self, make: Callable[[Produce], Message], in_flight: int = 1) -> None:
        ours, theirs = socket.socketpair()
        self.wire = Wire(ours)
        process = producer._Process(Wire(theirs), SimpleNamespace(), 1)  # type: ignore[arg-type]
        process._maker = SimpleNamespace(  # type: ignore[assignment]
            learn=lambda order: None,
            make=lambda order, began: make(order),
            preparer=lambda stream: SimpleNamespace(in_flight=in_flight),
        )

        def run() -> None:
            with pytest.raises(ServiceUnavailable):
                process.run()

        self._thread = threading.Thread(target=run)
        self._thread.start()
        assert self.letter() == [Joined(slots=2)]

    def letter(self) -> list[Message]:
        return list(self.wire.receive_all())

    def answers(self, count: int) -> Iterator[list[int]]:
        """Leases of each letter that has any, until `count` were answered."""
        while count > 0:
            leases = [each.lease for each in self.letter() if isinstance(each, Done | Failed)]
            count -= len(leases)
            if leases:
                yield leases

    def end(self) -> None:
        self.wire.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def talks() -> Iterator[Callable[..., Talk]]:
    opened: list[Talk] = []

    def talk(*args: Any) -> Talk:
        opened.append(Talk(*args))
        return opened[-1]

    yield talk
    for each in opened:
        each.end()


def done(seconds: float) -> Callable[[Produce], Message]:
    return lambda order: Done(lease=order.lease, bytes=1, seconds=seconds)


def test_small_batches_are_answered_together_while_there_is_more_to_make(talks: Callable[..., Talk]) -> None:
    started, go = threading.Event(), threading.Event()

    def make(order: Produce) -> Message:
        started.set()
        assert go.wait(10)
        return done(0.001)(order)

    talk = talks(make)
    talk.wire.send(order(1))
    assert started.wait(10)
    talk.wire.send(*(order(lease) for lease in range(2, 7)))
    go.set()
    letters = list(talk.answers(6))
    assert [lease for letter in letters for lease in letter] == [1, 2, 3, 4, 5, 6]
    assert len(letters) < 6
    talk.wire.send(order(7))
    assert list(talk.answers(1)) == [[7]]  # nothing more to make: at once


def test_it_says_that_it_takes_more_orders_when_batches_are_small(talks: Callable[..., Talk]) -> None:
    talk = talks(done(0.001))
    talk.wire.send(order(1))
    heard: list[Message] = []
    while not any(isinstance(each, Joined) for each in heard):
        heard += talk.letter()
    assert heard == [Done(lease=1, bytes=1, seconds=0.001), Joined(slots=2, spare=7)]


@pytest.mark.parametrize(("seconds", "in_flight"), [(0.2, 1), (0.001, 4)], ids=["slow", "data that is waited for"])
def test_others_are_answered_at_once(talks: Callable[..., Talk], seconds: float, in_flight: int) -> None:
    held = threading.Event()

    def make(order: Produce) -> Message:
        if order.lease == 2:
            assert held.wait(10)  # the answer to 1 must not wait for this
        return done(seconds)(order)

    talk = talks(make, in_flight)
    talk.wire.send(order(1), order(2))
    assert list(talk.answers(1)) == [[1]]
    held.set()
    assert list(talk.answers(1)) == [[2]]


def test_an_answer_does_not_wait_for_a_batch_of_another_stream(talks: Callable[..., Talk]) -> None:
    held = threading.Event()

    def make(order: Produce) -> Message:
        if order.stream == OTHER:
            assert held.wait(10)  # as one whose data must be listed first
        return done(0.001)(order)

    talk = talks(make)
    talk.wire.send(order(1), order(2, OTHER))
    assert list(talk.answers(1)) == [[1]]
    held.set()
    assert list(talk.answers(1)) == [[2]]


def test_a_failure_is_told_at_once(talks: Callable[..., Talk]) -> None:
    held = threading.Event()

    def make(order: Produce) -> Message:
        if order.lease == 2:
            assert held.wait(10)
        return Failed(lease=order.lease, reason="broken")

    talk = talks(make)
    talk.wire.send(order(1), order(2))
    assert list(talk.answers(1)) == [[1]]
    held.set()
    assert list(talk.answers(1)) == [[2]]
