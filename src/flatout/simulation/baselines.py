"""Other policies for the same jobs and producers: independent loaders, lockstep, a window, an LRU cache."""

from dataclasses import replace

from flatout.service.coordinator.policy import Policy
from flatout.simulation.simulator import SimulatedWorld, Simulation, SimulationOutcome


def shared(world: SimulatedWorld, policy: Policy) -> SimulationOutcome:
    """As the service decides."""
    return Simulation(world, policy).run()


def lru_cache(world: SimulatedWorld, policy: Policy) -> SimulationOutcome:
    """Batches are made on demand, and the least recently used is evicted: no use of what is known about the future."""
    return Simulation(world, replace(policy, eviction="lru", window=1)).run()


def independent(world: SimulatedWorld, policy: Policy) -> SimulationOutcome:
    """Every job makes all of its batches, with its fair share of the workers."""
    left = {number: float(job.batches) for number, job in enumerate(world.jobs)}
    ended: dict[int, float] = {}
    now, capacity = 0.0, world.workers / world.make_seconds
    while left:
        active = {number for number in left if world.jobs[number].start_seconds <= now}
        rates = _fair_shares({number: _own_rate(world, number) for number in active}, capacity)
        ends = [now + left[number] / rate for number, rate in rates.items()]
        starts = [world.jobs[number].start_seconds for number in left if number not in active]
        then = min(ends + starts)
        for number, rate in rates.items():
            left[number] -= rate * (then - now)
        now = then
        for number in [number for number in rates if left[number] <= 1e-9]:
            ended[number] = now
            del left[number]
    return _outcome(world, ended, sum(job.batches for job in world.jobs))


def lockstep(world: SimulatedWorld, policy: Policy) -> SimulationOutcome:
    """All jobs take every batch together, so all go at the pace of the slowest (CoorDL)."""
    return _together(world)


def window(world: SimulatedWorld, policy: Policy) -> SimulationOutcome:
    """The fastest job may be a window ahead of the slowest (TensorSocket): over a run, also the pace of the slowest."""
    slack = policy.window * min(job.step_seconds for job in world.jobs)
    together = _together(world)
    return replace(together, job_seconds=tuple(max(0.0, seconds - slack) for seconds in together.job_seconds))


def _together(world: SimulatedWorld) -> SimulationOutcome:
    """All jobs at the pace of the slowest, or of the producers. Jobs that start later join at the next batch."""
    slowest = max(1 / _own_rate(world, number) for number in range(len(world.jobs)))
    pace = max(slowest, world.make_seconds / world.workers)
    ended = {number: job.start_seconds + job.batches * pace for number, job in enumerate(world.jobs)}
    return _outcome(world, ended, max(job.batches for job in world.jobs))


def _own_rate(world: SimulatedWorld, number: int) -> float:
    """Batches per second of a job that never waits."""
    return 1 / max(world.jobs[number].step_seconds + world.handover_seconds, 1e-9)


def _fair_shares(wanted: dict[int, float], capacity: float) -> dict[int, float]:
    """Nobody gets more than it wants; what is left is shared equally by the rest."""
    shares: dict[int, float] = {}
    for number in sorted(wanted, key=lambda each: wanted[each]):
        shares[number] = min(wanted[number], (capacity - sum(shares.values())) / (len(wanted) - len(shares)))
    return shares


def _outcome(world: SimulatedWorld, ended: dict[int, float], made: int) -> SimulationOutcome:
    batches = sum(job.batches for job in world.jobs)
    seconds = tuple(ended[number] - job.start_seconds for number, job in enumerate(world.jobs))
    usd = made * world.make_seconds * world.usd_per_second
    return SimulationOutcome(max(ended.values()), seconds, batches, made, 0, 1 - made / batches, usd)


POLICIES = {"shared": shared, "independent": independent, "lru": lru_cache, "lockstep": lockstep, "window": window}
"""By the name that `flatout simulate` shows."""
