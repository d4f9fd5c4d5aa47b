"""Remote data read again in every epoch: copying it once pays from a known epoch on."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, saving
from flatout.diagnosis.model.run import break_even_epochs
from flatout.diagnosis.signals import Signals
from flatout.units import format_seconds


def find(signals: Signals) -> Finding | None:
    if not signals.input.remote or signals.input.staged or signals.recipe.epochs < 2 or not signals.step.starved:
        return None
    if not signals.fetch_bound or not signals.learning.epochs:
        return None
    steps = max(1, round(signals.step.done / max(1, len(signals.learning.epochs))))
    local_step = signals.step_with(max(1, signals.input.workers), fetch_factor=0.05)
    remote, local = steps * signals.step.seconds, steps * local_step
    epochs = break_even_epochs(remote, remote, local, remote)  # copying while training takes one remote epoch
    if epochs is None or epochs > signals.recipe.epochs:
        return None
    saved = faster_steps(signals, local_step, error=0.3) * ((signals.recipe.epochs - 1) / signals.recipe.epochs)
    return saving(
        signals,
        "staging-pays",
        "data-fetch",
        f"The same remote data is read in each of {signals.recipe.epochs} epochs; a local copy pays from epoch "
        f"{epochs} on",
        (f"an epoch takes {format_seconds(remote)} from the store, {format_seconds(local)} from local disk",),
        Fix("stage to local disk while the first epoch trains", {"data.stage": "auto"}),
        saved,
    )
