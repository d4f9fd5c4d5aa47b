"""Somebody else has the cores: a quota, the host, other processes. Whatever part of the run waited for them."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.rules.augment_bound import holds_the_lock
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds

_WORTH_NAMING = 0.15  # of the time that cores were missing
_LEAST_SHARE = 0.03  # of the run


def find(signals: Signals) -> Finding | None:
    return _cores_taken(signals) or _slower_than_calibrated(signals)


def who_has_the_cores(signals: Signals) -> list[tuple[str, str]]:
    """Outsiders, whoever had most first: in words, and what can be done."""
    held, host = signals.contention.holders, signals.host
    said = {
        "quota": (
            f"a CPU quota of {host.quota_cores or 0:.2g} cores withholds",
            f"raise the container's CPU quota of {host.quota_cores or 0:.2g} cores",
        ),
        "neighbours": (
            f"other processes have ({host.other_cores:.1f} of {host.machine_cores} cores)",
            "end what else runs here",
        ),
        "host": (
            "other virtual machines of this host have (steal)",
            "use a machine whose cores are not shared",
        ),
    }
    shares = {"quota": held.quota, "neighbours": held.neighbours, "host": held.host}
    order = sorted(shares, key=lambda name: -shares[name])
    return [said[name] for name in order if shares[name] >= _WORTH_NAMING * held.outside and shares[name] > 0]


def _cores_taken(signals: Signals) -> Finding | None:
    contention = signals.contention
    seconds = contention.outside()
    if signals.time.share(seconds) <= _LEAST_SHARE:
        return None
    who = who_has_the_cores(signals)
    parts = sorted(contention.by_part.items(), key=lambda item: -item[1])[:3]
    throttled = sum((row.throttled_cores or 0.0) * row.seconds for row in signals.host.rows)
    return saving(
        signals,
        "busy-host",
        "host",
        f"{percent(signals.time.share(seconds))} of the run waits for cores that "
        + " and ".join(words for words, _ in who),
        (
            "waiting for a core: "
            + ", ".join(f"{name.replace('_', ' ')} {format_seconds(each)}" for name, each in parts),
            *([f"the quota held threads back for {format_seconds(throttled)} in all"] if throttled > 0 else []),
        ),
        Fix("; ".join(remedy for _, remedy in who)),
        Interval(seconds, 0.7 * seconds, 1.1 * seconds),
    )


def _slower_than_calibrated(signals: Signals) -> Finding | None:
    """An emulated device knows how long its steps must take: said where nobody recorded who had the cores."""
    late = signals.late_seconds
    recorded = any(row.waiting_cores is not None for row in signals.host.rows)
    if late == 0 or recorded or holds_the_lock(signals):
        return None
    computed = signals.time.computing_seconds / signals.step.done
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
