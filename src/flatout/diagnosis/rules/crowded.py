"""This run is more at once than there are cores: its own threads, worker processes and ranks wait for each other."""

from flatout.diagnosis.contention import COMPUTING
from flatout.diagnosis.finding import Finding, Fix, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    return _threads(signals) or _processes(signals)


def _threads(signals: Signals) -> Finding | None:
    threads = signals.host.threads * signals.ranks_near
    if signals.device.kind != "cpu" or threads <= signals.host.machine_cores:
        return None
    computing = signals.net(*COMPUTING)
    waited = signals.contention.own(*COMPUTING) or 0.3 * computing
    ranks = f" of {signals.ranks_near} ranks" if signals.ranks_near > 1 else ""
    return saving(
        signals,
        "too-many-threads",
        "host",
        f"{threads} compute threads{ranks} share {signals.host.machine_cores} cores",
        (f"threads of one operation wait for the slowest of them; {_waited(signals)}",),
        Fix("as many threads as there are cores", {"threads": "auto"}),
        # from threads that take turns, which costs little, to threads that spin at each barrier, which costs nearly all
        Interval(waited, min(waited, 0.05 * computing), max(waited, 0.99 * computing)),
    )


def _processes(signals: Signals) -> Finding | None:
    workers, cores = signals.input.active_workers * signals.ranks_near, signals.host.machine_cores
    if signals.input.worker_kind != "process" or workers < 2 * cores or signals.fetch_bound:
        return None
    behind = signals.contention.own(*COMPUTING, "copy", "other")
    saved = behind * (1 - cores / workers)
    return saving(
        signals,
        "too-many-processes",
        "host",
        f"{workers} worker processes share {cores} cores with the training thread",
        (f"they cannot all work at once, and each takes memory and a start; {_waited(signals)}",),
        Fix(f"{cores} workers", {"data.workers": max(1, cores // signals.ranks_near)}),
        Interval(saved, 0.0, behind),
    )


def _waited(signals: Signals) -> str:
    return f"the training thread waited {format_seconds(signals.contention.own(*COMPUTING))} for its own run's threads"
