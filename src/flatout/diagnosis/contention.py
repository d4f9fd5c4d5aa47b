"""Time for which work was ready and had no core, and who had it: a quota, the host, other processes, this run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flatout.diagnosis.signal_groups import HostRow, HostSignals

COMPUTING = ("forward", "backward", "optimizer")
_LEAST_OTHERS = 0.1  # cores
_LEAST_WAITING = 0.02  # cores: less is the ordinary turn-taking of a scheduler


@dataclass(frozen=True)
class Holders:
    """Of the time that this run's threads waited for a core: the share that each had the core. They add up to 1."""

    quota: float = 0.0
    """A container's CPU quota: nobody had it."""
    host: float = 0.0
    """Other virtual machines (steal)."""
    neighbours: float = 0.0
    """Other processes of this machine."""

    @property
    def outside(self) -> float:
        return self.quota + self.host + self.neighbours

    @property
    def own(self) -> float:
        """Other threads, workers and ranks of this run: it has more of them at work than there are cores."""
        return 1.0 - self.outside


def holders(host: HostSignals) -> Holders:
    """Row by row of system.csv, where threads waited."""
    waited, taken = 0.0, [0.0, 0.0, 0.0]
    for row in host.rows:
        if row.waiting_cores is not None and row.process_cores is not None and row.waiting_cores >= _LEAST_WAITING:
            waited += row.waiting_cores * row.seconds
            for place, cores in enumerate(_lost_cores(row, row.process_cores, row.waiting_cores, host)):
                taken[place] += cores * row.seconds
    return Holders(*(each / waited for each in taken)) if waited > 0 else Holders()


def _lost_cores(row: HostRow, used: float, waiting: float, host: HostSignals) -> tuple[float, float, float]:
    """Cores that a quota, the host and other processes kept from this run. Without them it would have had as many as it
    asked for, and no more than there are. Up to a quota that is in force others stand in the way, above it the quota;
    and others cannot have taken more than they used."""
    asked = min(used + waiting, float(host.machine_cores))
    stolen = (row.steal_share or 0.0) * host.machine_cores
    others = max(0.0, (row.cpu_share or 0.0) * host.machine_cores - used)
    # a quota that did not strike may wait behind others who left even less
    in_force = host.quota_cores is not None and (row.throttled_cores or stolen + others > _LEAST_OTHERS)
    allowed = min(asked, max(used, host.quota_cores or 0.0)) if in_force else asked
    by_others = min(max(0.0, allowed - used), stolen + others)
    part = by_others / (stolen + others) if stolen + others > 0 else 0.0
    return max(0.0, asked - allowed), stolen * part, others * part


def threads_delay_share(host: HostSignals) -> float:
    """Of the time that this run's threads were at work or ready to be: how much they waited for a core."""
    known = [row for row in host.rows if row.waiting_cores is not None and row.process_cores is not None]
    waiting = sum((row.waiting_cores or 0.0) * row.seconds for row in known)
    asked = waiting + sum((row.process_cores or 0.0) * row.seconds for row in known)
    return waiting / asked if asked > 0 else 0.0


@dataclass(frozen=True)
class Contention:
    """Seconds of the main thread's ledger, by part, that a core was missing for, whoever had it."""

    by_part: Mapping[str, float] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)

    def outside(self, *parts: str) -> float:
        """What others than this run took of these parts; of all of them where none is named."""
        return self.holders.outside * self._of(parts)

    def own(self, *parts: str) -> float:
        """What this run took from itself."""
        return self.holders.own * self._of(parts)

    def _of(self, parts: tuple[str, ...]) -> float:
        return sum(self.by_part.get(name, 0.0) for name in parts or self.by_part)


def by_part(
    parts: Mapping[str, float], core_wait: Mapping[str, float], helpers_share: float, loading_seconds: float
) -> dict[str, float]:
    """Seconds of each part that its thread waited for a core. `helpers_share`: where several threads compute, the share
    of their time that they waited, since the main thread waits for the slowest of them; 0 where it computes alone.
    `loading_seconds`: what workers lacked cores for while the main thread waited for their batches."""
    found = {name: min(core_wait.get(name, 0.0), seconds) for name, seconds in parts.items() if seconds > 0}
    for name in COMPUTING:
        if parts.get(name):
            found[name] = max(found[name], helpers_share * parts[name])
    if parts.get("data_wait"):
        found["data_wait"] = min(parts["data_wait"], found["data_wait"] + loading_seconds)
    return found
