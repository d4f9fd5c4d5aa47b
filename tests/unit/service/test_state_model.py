"""The coordinator's state against a model that only knows what may never happen."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from flatout.service.coordinator.instructions import Discard, End, Make, Tell
from flatout.service.coordinator.policy import Policy
from flatout.service.coordinator.state import State
from flatout.service.protocol.messages import (
    Batches,
    Claim,
    Claimed,
    Done,
    Failed,
    Joined,
    Leave,
    Lost,
    Next,
    Produce,
    Refused,
    Register,
    Registered,
    Spoilt,
    Tick,
)
from flatout.simulation.simulator import SIMULATED_SPEC

CAPACITY, MOST_ASKS = 1000, 10
SIZES = {"a" * 64: 100, "b" * 64: 130}
SPECS = {name: SIMULATED_SPEC.model_copy(update={"batch_size": size}) for name, size in SIZES.items()}
PER_EPOCH = 7


class Coordinator(RuleBasedStateMachine):
    jobs = Bundle("jobs")
    producers = Bundle("producers")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.where: dict[str, int] = {}  # job -> position of its last ask
        self.stream: dict[str, str] = {}
        self.first: dict[str, tuple[int, int]] = {}
        self.held: dict[str, list[int]] = {}
        self.asked: dict[tuple[str, int], int] = {}
        self.open: dict[str, int] = {}  # asks without an answer
        self.content: dict[int, tuple[str, int, int]] = {}
        self.sizes: dict[int, int] = {}
        self.doubted: set[int] = set()
        self.slots: dict[str, int] = {}
        self.given: dict[int, tuple[str, tuple[str, int, int], int]] = {}  # lease -> holder, key, buffer

    # eviction is drawn once per run
    @rule(eviction=st.sampled_from(["reuse", "lru"]), cap=st.sampled_from([None, 0.36]))
    @precondition(lambda self: not hasattr(self, "state"))
    def begin(self, eviction: str, cap: float | None) -> None:
        self.state = State(Policy(CAPACITY, 5, 10.0, 3, MOST_ASKS, eviction, usd_per_hour=cap, keep_alive_seconds=60.0))

    def say(self, who: str, message: object) -> list[int]:
        """Feed one message, obey and check every instruction; the new leases."""
        self.now += 0.01
        new = []
        for each in self.state.handle(self.now, who, message):
            match each:
                case Make(buffer, count):
                    assert buffer not in self.sizes, "a number is used once"
                    self.sizes[buffer] = count
                case Discard(buffer, _):
                    del self.sizes[buffer]
                    self.content.pop(buffer, None)
                case Tell(to, Produce() as order):
                    self.check_writable(order.buffer)
                    key = (order.stream, order.epoch, order.index)
                    new.append(self.give(order.lease, to, key, order.buffer))
                    busy = [
                        lease
                        for lease, each in self.given.items()
                        if each[0] == to and lease in self.state.tables.leases.active
                    ]
                    assert len(busy) <= self.slots[to]
                case Tell(to, Claimed(lease=lease, buffer=buffer) as claimed):
                    if lease is not None:
                        self.check_writable(buffer)
                        key = (self.stream[to], claimed.epoch, claimed.index)
                        new.append(self.give(lease, to, key, buffer))
                case Tell(to, Batches() as answer):
                    self.check_answer(to, answer)
                case Tell(to, Registered() as answer):
                    self.first[to] = (answer.epoch, answer.index)
                case Tell(to, Refused()):
                    self.open.pop(to, None)
                case End(producer, _):
                    self.doubted.update(buffer for holder, _, buffer in self.given.values() if holder == producer)
        for lease in [lease for lease in self.given if lease not in self.state.tables.leases.active]:
            del self.given[lease]
        return new

    def give(self, lease: int, holder: str, key: tuple[str, int, int], buffer: int) -> int:
        assert all(
            key != other for number, (_, other, _) in self.given.items() if number in self.state.tables.leases.active
        )
        assert self.sizes[buffer] == SIZES[key[0]]
        self.given[lease] = (holder, key, buffer)
        self.content.pop(buffer, None)
        return lease

    def check_writable(self, buffer: int) -> None:
        assert not any(buffer in held for held in self.held.values()), "written while somebody reads it"
        assert buffer not in self.doubted

    def check_answer(self, job: str, answer: Batches) -> None:
        position = self.open.pop(job)
        assert answer.position == position
        for number, buffer in enumerate(answer.buffers):
            epoch, index = self.first[job]
            epochs, within = divmod(position + number, PER_EPOCH)
            expected = (epoch + epochs, (index + within) % PER_EPOCH)
            assert self.content[buffer] == (self.stream[job], *expected), "ready, and not written"
            self.held[job].append(buffer)
        if self.asked[job, position] >= MOST_ASKS and not answer.buffers:
            assert answer.denied is not None

    @rule(
        target=jobs,
        stream=st.sampled_from(sorted(SIZES)),
        last=st.sampled_from([None, 9, 30]),
        anywhere=st.booleans(),
        position=st.sampled_from([0, 0, 5]),
    )
    @precondition(lambda self: hasattr(self, "state"))
    def job_registers(self, stream: str, last: int | None, anywhere: bool, position: int) -> str:
        self.serial += 1
        name = f"job-{self.serial}"
        self.stream[name], self.held[name], self.where[name] = stream, [], position
        self.say(
            name,
            Register(
                stream=stream,
                spec=SPECS[stream],
                position=position,
                batches_per_epoch=PER_EPOCH,
                batch_bytes=SIZES[stream],
                last=last,
                anywhere=anywhere,
            ),
        )
        return name

    @rule(
        target=leases,
        job=jobs,
        forward=st.sampled_from([0, 0, 1, 1, 1, 4, -3]),
        count=st.integers(1, 4),
        wait=st.sampled_from([0.0, 1.0]),
        release=st.integers(0, 5),
        speed=st.sampled_from([None, 0.1, 5.0]),
    )
    def job_asks(self, job: str, forward: int, count: int, wait: float, release: int, speed: float | None) -> object:
        if job not in self.where or job in self.open:
            return multiple()
        position = max(0, self.where[job] + forward)
        released, self.held[job] = self.held[job][:release], self.held[job][release:]
        self.where[job], self.open[job] = position, position
        if forward < 0:
            self.asked = {each: times for each, times in self.asked.items() if each[0] != job}
        self.asked[job, position] = self.asked.get((job, position), 0) + 1
        return multiple(
            *self.say(
                job, Next(position=position, count=count, wait_seconds=wait, released=released, step_seconds=speed)
            )
        )

    @rule(target=leases, job=jobs)
    def job_claims(self, job: str) -> object:
        if job not in self.where or job in self.open:
            return multiple()
        return multiple(*self.say(job, Claim(position=self.where[job])))

    @rule(job=consumes(jobs), quietly=st.booleans())
    def job_goes(self, job: str, quietly: bool) -> None:
        if self.where.pop(job, None) is not None:
            self.doubted.update(self.held.pop(job))
            self.open.pop(job, None)
            self.say(job, Lost(reason="gone") if quietly else Leave())

    @rule(job=jobs)
    def job_finds_it_spoilt(self, job: str) -> None:
        if self.held.get(job):
            self.say(job, Spoilt(position=self.where[job], buffer=self.held[job][0]))

    @rule(target=producers, slots=st.integers(1, 3), spare=st.integers(0, 2), price=st.sampled_from([0.0, 0.001]))
    @precondition(lambda self: hasattr(self, "state"))
    def producer_joins(self, slots: int, spare: int, price: float) -> str:
        self.serial += 1
        name = f"producer-{self.serial}"
        self.slots[name] = slots + spare
        self.later = self.say(name, Joined(slots=slots, spare=spare, usd_per_second=price))
        return name

    @rule(producer=consumes(producers))
    def producer_is_lost(self, producer: str) -> None:
        self.doubted.update(buffer for holder, _, buffer in self.given.values() if holder == producer)
        self.say(producer, Lost(reason="kill -9"))

    @rule(seconds=st.sampled_from([0.1, 3.0, 30.0]), cold=st.booleans(), pick=st.integers(0, 50))
    @precondition(lambda self: bool(getattr(self, "given", None)))
    def somebody_finishes(self, seconds: float, cold: bool, pick: int) -> None:
        lease = sorted(self.given)[pick % len(self.given)]
        holder, key, buffer = self.given[lease]
        self.content[buffer] = key
        self.say(holder, Done(lease=lease, bytes=SIZES[key[0]], seconds=seconds, cold=cold))
        assert lease not in self.state.tables.leases.active

    @rule(pick=st.integers(0, 50), stream_is=st.sampled_from(["fine"] * 8 + ["unavailable", "another"]))
    @precondition(lambda self: bool(getattr(self, "given", None)))
    def somebody_fails(self, pick: int, stream_is: str) -> None:
        lease = sorted(self.given)[pick % len(self.given)]
        holder, _, buffer = self.given[lease]
        self.doubted.add(buffer)
        self.say(holder, Failed(lease=lease, reason="garbage", stream_is=stream_is))

    @rule(lease=st.integers(1, 60))
    @precondition(lambda self: bool(getattr(self, "slots", None)))
    def a_liar_finishes(self, lease: int) -> None:
        """A lease that is over, or somebody else's."""
        liar = sorted(self.slots)[0]
        if self.given.get(lease, ("",))[0] != liar:
            before = set(self.state.tables.cache.entries)
            self.say(liar, Done(lease=lease, bytes=1, seconds=1.0))
            assert set(self.state.tables.cache.entries) <= before

    @rule(seconds=st.sampled_from([0.0, 2.0, 11.0]))
    @precondition(lambda self: hasattr(self, "state"))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = {lease for lease, each in self.state.tables.leases.active.items() if each.expires <= self.now}
        self.doubted.update(self.state.tables.leases.active[lease].buffer for lease in overdue)
        self.say("clock", Tick())
        assert not overdue & set(self.state.tables.leases.active)
        if seconds > 1:
            assert not self.open, "every ask is answered by its deadline"

    @rule()
    @precondition(lambda self: bool(getattr(self, "sizes", None)))
    def the_store_is_full(self) -> None:
        made = [lease for lease in self.given.values() if lease[2] in self.sizes]
        if made:
            buffer = made[-1][2]
            for each in self.state.no_space(buffer):
                assert isinstance(each, Discard)
                del self.sizes[each.buffer]
            self.given = {lease: each for lease, each in self.given.items() if each[2] != buffer}

    @rule()
    @precondition(lambda self: hasattr(self, "state"))
    def somebody_clears(self) -> None:
        for each in self.state.clear():
            del self.sizes[each.buffer]
            self.content.pop(each.buffer, None)
        assert not self.state.tables.cache.entries

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "state"):
            return
        cache = self.state.tables.cache
        assert cache.used_bytes == sum(self.sizes.values()) <= CAPACITY
        assert set(cache.buffers) == set(self.sizes)
        for buffer in cache.buffers.values():
            assert buffer.readers == sum(held.count(buffer.number) for held in self.held.values())
        assert set(self.given) == set(self.state.tables.leases.active)
        assert all(cache.entries[cache.buffers[each].batch].number == each for each in cache.unneeded)

    @invariant()
    def nothing_is_overlooked(self) -> None:
        """What a job is taken to have ahead of it is there, being made, or given up."""
        for job in self.state.tables.jobs.values() if hasattr(self, "state") else ():
            losses, until = job.scan_cursor
            for position in range(job.position, until) if losses == self.state.tables.cache.losses else ():
                key = job.batch_id(position)
                given_up = self.state.tables.leases.given_up(key) is not None
                assert key in self.state.tables.cache.entries or key in self.state.tables.leases.by_batch or given_up


Coordinator.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestCoordinator = Coordinator.TestCase


def test_a_job_that_is_not_registered_is_told() -> None:
    state = State(Policy(CAPACITY))
    (told,) = state.handle(0.0, "job", Next(position=0))
    assert isinstance(told, Tell)
    assert isinstance(told.message, Refused)
