"""The real coordinator in simulated time: what sharing would do for jobs, speeds and caches that are not here.

Jobs and producers are simulated; every decision is made by the `State` that serves live jobs. `replay` feeds it the
trace of a live service instead, and compares the decisions.
"""

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flatout.errors import BadFile, ConfigError
from flatout.service.client.decisions import AskFor, AskHistory, next_action
from flatout.service.coordinator.instructions import Instruction, Tell
from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK, Policy
from flatout.service.coordinator.state import State
from flatout.service.protocol.messages import Batches, Done, Joined, Leave, Next, Produce, Register, Tick, decode_body
from flatout.service.protocol.stream_spec import DataSpec, StreamSpec, ViewSpec
from flatout.untrusted import parse_json, read_lines

_STREAM = "0" * 64
_VIEW = ViewSpec(name="simulated", crop="raw")
SIMULATED_SPEC = StreamSpec(
    data=DataSpec(path="simulated"), content=_STREAM, view="0" * 16, view_values=_VIEW, batch_size=1
)
_TICK_SECONDS = 0.25


@dataclass(frozen=True)
class SimulatedJob:
    step_seconds: float
    batches: int  # that it reads until it ends
    start_seconds: float = 0.0


@dataclass(frozen=True)
class SimulatedWorld:
    """What is simulated: jobs, and one producer with `workers` that each make a batch in `make_seconds`."""

    jobs: tuple[SimulatedJob, ...]
    batches_per_epoch: int
    batch_bytes: int
    workers: int
    make_seconds: float
    cold_seconds: float = 0.0  # added to the first batch of each worker
    usd_per_second: float = 0.0
    handover_seconds: float = 0.0  # that it takes a job to open a batch that is ready


@dataclass(frozen=True)
class SimulationOutcome:
    """The figures of one policy."""

    seconds: float  # until the last job ended
    job_seconds: tuple[float, ...]  # from start to end of each job
    batches: int  # read by all jobs
    made: int
    made_locally: int  # by jobs, since they had waited too long
    hit_rate: float | None
    usd: float = 0.0  # of producers that are paid by the second


@dataclass
class _JobState:
    spec: SimulatedJob
    position: int = 0
    asked: int = 0
    waited_since: float = 0.0
    held: list[int] = field(default_factory=list)
    ended: float | None = None
    local: int = 0


class Simulation:
    """An event queue around `State`, in simulated seconds."""

    def __init__(self, world: SimulatedWorld, policy: Policy) -> None:
        self.state = State(policy)
        self._world = world
        self._now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._jobs = {f"job-{number}": _JobState(job) for number, job in enumerate(world.jobs)}
        self._orders: deque[Produce] = deque()
        self._busy = 0
        self._cold = world.workers  # that have made no batch yet

    def run(self) -> SimulationOutcome:
        slots, world = self._world.workers + 1, self._world  # one order more, as real producers ask for
        joined = Joined(slots=slots, usd_per_second=world.usd_per_second, seconds_to_start=world.cold_seconds)
        self._say("producer", joined)
        for name, job in self._jobs.items():
            self._at(job.spec.start_seconds, partial(self._register, name))
        self._at(_TICK_SECONDS, self._tick)
        while any(job.ended is None for job in self._jobs.values()):
            self._now, _, act = heapq.heappop(self._queue)
            act()
        return self._outcome()

    def _outcome(self) -> SimulationOutcome:
        counts, jobs = self.state.tables.accounts.counts, self._jobs.values()
        served, local = counts.hits + counts.waited, sum(job.local for job in jobs)
        return SimulationOutcome(
            seconds=self._now,
            job_seconds=tuple((job.ended or 0.0) - job.spec.start_seconds for job in jobs),
            batches=served + local,
            made=counts.made,
            made_locally=local,
            hit_rate=1 - (counts.made + local) / (served + local) if served else None,
            usd=self.state.tables.accounts.allowance.spent_usd,
        )

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (when, self._serial, act))

    def _say(self, who: str, message: Any) -> None:
        self._obey(self.state.handle(self._now, who, message))

    def _obey(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Tell) and isinstance(each.message, Produce):
                self._orders.append(each.message)
                self._start_workers()
            elif isinstance(each, Tell) and isinstance(each.message, Batches):
                self._answer(each.to, each.message)

    def _tick(self) -> None:
        self._say("clock", Tick())
        self._at(self._now + _TICK_SECONDS, self._tick)

    def _start_workers(self) -> None:
        while self._orders and self._busy < self._world.workers:
            order, cold = self._orders.popleft(), self._cold > 0
            self._cold -= cold
            self._busy += 1
            seconds = self._world.make_seconds + (self._world.cold_seconds if cold else 0.0)
            self._at(self._now + seconds, partial(self._made, order, seconds, cold))

    def _made(self, order: Produce, seconds: float, cold: bool) -> None:
        self._busy -= 1
        self._say("producer", Done(lease=order.lease, bytes=order.bytes, seconds=seconds, cold=cold))
        self._start_workers()

    def _register(self, name: str) -> None:
        register = Register(
            stream=_STREAM,
            spec=SIMULATED_SPEC,
            batches_per_epoch=self._world.batches_per_epoch,
            batch_bytes=self._world.batch_bytes,
            position=0,
            last=self._jobs[name].spec.batches,
        )
        self._say(name, register)
        self._ask(name)

    def _ask(self, name: str) -> None:
        job = self._jobs[name]
        if job.position >= job.spec.batches:
            job.ended = self._now
            self._say(name, Leave())
            return
        if job.asked == 0:
            job.waited_since = self._now
        action = next_action(AskHistory(job.asked, self._now - job.waited_since), None)
        if not isinstance(action, AskFor):
            self._make_locally(name)
            return
        job.asked += 1
        released, job.held = job.held, []
        question = Next(
            position=job.position,
            count=MAX_BATCHES_PER_ASK,
            wait_seconds=action.wait_seconds,
            released=released,
            step_seconds=job.spec.step_seconds,
        )
        self._say(name, question)

    def _answer(self, name: str, answer: Batches) -> None:
        job = self._jobs[name]
        if answer.buffers:
            job.asked = 0
            job.held += answer.buffers
            job.position += len(answer.buffers)
            seconds = len(answer.buffers) * (job.spec.step_seconds + self._world.handover_seconds)
            self._at(self._now + seconds, partial(self._ask, name))
        elif answer.denied is not None:
            self._make_locally(name)
        else:
            self._at(self._now, partial(self._ask, name))

    def _make_locally(self, name: str) -> None:
        job = self._jobs[name]
        job.asked, job.local, job.position = 0, job.local + 1, job.position + 1
        self._at(self._now + self._world.make_seconds + job.spec.step_seconds, partial(self._ask, name))


def replay(trace: Path) -> tuple[int, list[str]]:
    """Decide again what a live service decided, from its trace; how many decisions, and a line for each difference."""
    try:
        return _replayed(read_lines(trace), trace)
    except (BadFile, ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration) as error:
        raise ConfigError(f"{trace} is not a trace of `flatout serve --trace`, or is damaged: {error!r:.200}") from None


def _replayed(lines: Iterator[str], trace: Path) -> tuple[int, list[str]]:
    state, count, differ = State(Policy(**parse_json(next(lines), trace)["policy"])), 0, []
    for line in lines:
        now, who, message, expected = parse_json(line, trace)
        if message["kind"] == "no_space":
            decided = state.no_space(message["buffer"])
        elif message["kind"] == "clear":
            decided = state.clear()
        else:
            decided = state.handle(now, who, decode_body(json.dumps(message).encode()))
        count += 1
        if [repr(each) for each in decided] != expected:
            differ.append(f"at {now:.3f} after {who} said {message['kind']}: {decided} instead of {expected}")
    return count, differ
