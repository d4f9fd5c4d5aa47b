"""A job that is lost in the midst of its batches costs the others nothing: the real coordinator, in simulated time."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.service.coordinator.policy import Policy
from flatout.service.protocol.messages import Lost
from flatout.simulation.simulator import SimulatedJob, SimulatedWorld, Simulation

BATCH_BYTES, VICTIM = 1000, "job-0"


class WithALoss(Simulation):
    """The first job says nothing any more from a moment on, with all that it holds; then its connection is gone."""

    def __init__(self, world: SimulatedWorld, policy: Policy, lost_seconds: float) -> None:
        super().__init__(world, policy)
        self._at(lost_seconds, self._lose)

    def _lose(self) -> None:
        job = self._jobs[VICTIM]
        if job.ended is None:
            job.ended = self._now
            self._say(VICTIM, Lost(reason="killed"))

    def _ask(self, name: str) -> None:
        if self._jobs[name].ended is None:
            super()._ask(name)

    def _register(self, name: str) -> None:
        if self._jobs[name].ended is None:
            super()._register(name)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from([0.02, 0.05, 0.1, 0.2]), min_size=2, max_size=4),
    make_seconds=st.sampled_from([0.001, 0.01, 0.04]),
    room=st.sampled_from([12, 24, 64, 1000]),
    lost_seconds=st.floats(0.0, 8.0),
)
def test_the_step_time_of_the_others_stays_within_a_tenth(
    steps: list[float], make_seconds: float, room: int, lost_seconds: float
) -> None:
    """Of what it is with that job until the end, or without it from the beginning, whichever is more."""
    jobs = tuple(SimulatedJob(seconds, batches=100) for seconds in steps)
    world = SimulatedWorld(jobs, 50, BATCH_BYTES, workers=2, make_seconds=make_seconds)
    policy = Policy(room * BATCH_BYTES)
    untouched = Simulation(world, policy).run().job_seconds[1:]
    without = Simulation(replace(world, jobs=jobs[1:]), policy).run().job_seconds
    loss = WithALoss(world, policy, lost_seconds)
    after = loss.run().job_seconds[1:]
    for both, alone, now in zip(untouched, without, after, strict=True):
        assert now <= 1.1 * max(both, alone)
    assert not loss.state.tables.jobs
    assert not any(buffer.readers for buffer in loss.state.tables.cache.buffers.values()), "given back for it"
