"""Something else takes the processor away from this run."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.rules.augment_bound import holds_the_lock
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    return _slower_than_calibrated(signals) or _others_compute(signals)


def _slower_than_calibrated(signals: Signals) -> Finding | None:
    """An emulated device knows how long its steps must take."""
    late = signals.late_seconds
    if late == 0 or holds_the_lock(signals):
        return None
    computed = (signals.time.computing_seconds) / signals.step.done
    expected = computed - late
    return saving(
        signals,
        "busy-host",
        "host",
        f"The machine is too busy: the device's part of a step takes {format_seconds(computed)} instead of "
        f"{format_seconds(expected)}",
        (f"{percent(late / expected)} more than the emulated device is set to",),
        Fix("end what else runs here, or use fewer workers, so that the training thread is not kept waiting"),
        faster_steps(signals, signals.step.seconds - late),
    )


def _others_compute(signals: Signals) -> Finding | None:
    cpu, own = signals.host.cpu_share, signals.host.process_cores
    if not cpu or not own or signals.device.kind != "cpu" or signals.step.starved:
        return None
    busy, ours, others = sum(cpu) / len(cpu) * signals.host.cores, sum(own) / len(own), signals.host.other_cores
    if busy < 0.9 * signals.host.cores or others < 0.35 * signals.host.cores:
        return None
    return saving(
        signals,
        "busy-host",
        "host",
        f"Other processes use {others:.1f} of {signals.host.cores} cores",
        (f"the machine is {percent(busy / signals.host.cores)} busy, this run uses {ours:.1f} cores",),
        Fix("end what else runs here"),
        faster_steps(signals, signals.step.seconds * (1 - others / signals.host.cores), error=0.3),
    )
