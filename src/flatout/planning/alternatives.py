"""What else could be rented for an option that waits or comes too late: the next larger machine, or more of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flatout.planning.options import Option, PlannedJob, RecipeChange, at_price, option_for

_LEAST_WAITING = 0.05
_LEAST_GAIN = 1.05
_NODES = (2, 4, 8)


def with_alternatives(job: PlannedJob, options: Sequence[Option], deadline_hours: float | None) -> list[Option]:
    """The same options with these as further advice."""
    found = []
    for each in options:
        further = [_larger_machine(each, options), _more_nodes(job, each, deadline_hours)]
        found.append(replace(each, changes=(*each.changes, *(change for change in further if change is not None))))
    return found


def _larger_machine(option: Option, options: Sequence[Option]) -> RecipeChange | None:
    """Of the same cards in the same cloud, with more vCPUs to decode: the one that costs least in all."""
    if not option.fits or option.usd is None or option.limit != "decode" or option.waiting_share <= _LEAST_WAITING:
        return None
    machine = option.machine
    better = [
        each
        for each in options
        if each.usd is not None
        and (each.machine.cloud, each.card, each.machine.gpus, each.spot)
        == (machine.cloud, option.card, machine.gpus, option.spot)
        and each.per_second.value >= _LEAST_GAIN * option.per_second.value
    ]
    best = min(better, key=lambda each: each.usd.value if each.usd else 0.0, default=None)
    if best is None or best.usd is None:
        return None
    more, vcpus = best.usd.value - option.usd.value, best.machine.vcpus
    why = f"{vcpus:g} vCPUs decode there" if vcpus is not None else "it decodes faster"
    why += f": ${abs(more):.2f} {'more' if more > 0 else 'less'} for the whole run"
    return RecipeChange("machine", best.name, why, applied=False, gain=best.per_second.value / option.per_second.value)


def _more_nodes(job: PlannedJob, option: Option, deadline_hours: float | None) -> RecipeChange | None:
    """The fewest machines that are done in time."""
    if deadline_hours is None or not option.fits or option.hours.value <= deadline_hours or job.nodes > 1:
        return None
    for nodes in _NODES:
        told = at_price(option_for(replace(job, nodes=nodes), option.machine, option.card), option.spot, nodes)
        if told.fits and told.hours.value <= deadline_hours:
            usd = "" if told.usd is None else f", ${told.usd.value:.2f}"
            gain = option.hours.value / told.hours.value
            why = f"{nodes} of them take {told.hours.value:.2g} h{usd}: flatout plan --nodes {nodes}"
            return RecipeChange("parallel.nodes", nodes, why, applied=False, gain=gain)
    return None
