"""The coordinator beside a store that does not answer."""

import threading
from collections.abc import Iterator

import pytest

from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.coordinator.policy import Policy
from flatout.service.protocol.messages import Done, Joined, Message, Next, Produce, Register
from flatout.service.protocol.specs import batch_key
from flatout.simulation.simulator import SIMULATED_SPEC

STREAM = "a" * 64
BATCHES = 3
REGISTER = Register(
    stream=STREAM, spec=SIMULATED_SPEC, batches_per_epoch=BATCHES, batch_bytes=100, position=0, last=BATCHES
)


class HangingStore:
    """Like a Redis that has stopped: what changes an entry takes until `answers` is set."""

    address, is_mapped = "redis://somewhere", False

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.done: list[tuple[str, bytes]] = []

    def make(self, number: int, count: int) -> None: ...

    def verify(self, number: int, key: bytes) -> None: ...

    def close(self) -> None: ...

    def discard(self, number: int, key: bytes | None) -> None:
        self._change("discard", key)

    def touch(self, key: bytes) -> None:
        self._change("touch", key)

    def _change(self, what: str, key: bytes | None) -> None:
        self.asked.set()
        assert self.answers.wait(60)
        assert key is not None
        self.done.append((what, key))


class Sharing:
    """A job and a producer that makes whatever it is asked for."""

    def __init__(self, policy: Policy) -> None:
        self.store = HangingStore()
        self.orders: list[Produce] = []
        self.answers: list[Message] = []
        self.now = 0.0
        self.coordinator = Coordinator(policy, self.store, clock=lambda: self.now)  # type: ignore[arg-type]
        self.coordinator.attach("producer", lambda *messages: self.orders.extend(messages))
        self.coordinator.attach("job", lambda *messages: self.answers.extend(messages))
        self.coordinator.say("producer", Joined(slots=BATCHES))
        self.coordinator.say("job", REGISTER)
        self.make_all()

    def make_all(self) -> None:
        while self.orders:
            order = self.orders.pop()
            self.coordinator.say("producer", Done(lease=order.lease, bytes=90, seconds=0.1))


@pytest.fixture
def sharing() -> Iterator[Sharing]:
    made = Sharing(Policy(10_000, recycles=False, keep_alive_seconds=5.0))
    yield made
    made.store.answers.set()
    made.coordinator.close()


def key_of(index: int) -> bytes:
    return batch_key(STREAM, 0, index)


def test_a_store_that_hangs_holds_up_nobody(sharing: Sharing) -> None:
    clearing = threading.Thread(target=sharing.coordinator.clear, daemon=True)
    clearing.start()
    assert sharing.store.asked.wait(60)
    clearing.join(10)
    assert not clearing.is_alive()
    sharing.coordinator.tick()  # orders them again
    sharing.make_all()
    sharing.coordinator.say("job", Next(position=0, count=BATCHES, wait_seconds=1.0))
    assert sharing.coordinator.status()["counts"]["hits"] == BATCHES


def test_a_batch_that_was_made_again_is_not_removed(sharing: Sharing) -> None:
    """The removal of one of them is on its way; those of the others have not begun when they are made anew."""
    sharing.coordinator.clear()
    assert sharing.store.asked.wait(60)
    sharing.coordinator.tick()  # orders them again
    assert len(sharing.orders) == BATCHES
    sharing.make_all()
    sharing.store.answers.set()
    sharing.coordinator.close()
    assert [what for what, _ in sharing.store.done] == ["discard"]


def test_needed_batches_are_renewed_and_evicted_ones_removed(sharing: Sharing) -> None:
    sharing.store.answers.set()
    sharing.now = 6.0
    sharing.coordinator.tick()
    sharing.coordinator.detach("producer", "the end")  # nobody makes them again
    sharing.coordinator.clear()
    sharing.coordinator.close()
    done = sharing.store.done
    assert {key for what, key in done if what == "discard"} == {key_of(index) for index in range(BATCHES)}
    for index in range(BATCHES):  # a renewal may be superseded by the removal, but never follows it
        assert ("touch", key_of(index)) not in done[done.index(("discard", key_of(index))) :]
