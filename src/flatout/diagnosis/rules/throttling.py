"""The store says: slow down (503 or 429)."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.signals import Signals


def throttled_share(signals: Signals) -> float:
    """Of the requests to the store; 0 without a store."""
    store = signals.input.store
    return (store.throttles or 0) / store.requests if store is not None and store.requests else 0.0


def find(signals: Signals) -> Finding | None:
    share = throttled_share(signals)
    if share <= 0.01 or signals.input.store is None:
        return None
    fix = Fix("spread the objects over prefixes or pack them into fewer; ask for less at once")
    if not signals.input.staged and signals.recipe.epochs > 1:
        fix = Fix("read every object once: stage to local disk while the first epoch trains", {"data.stage": "auto"})
    return saving(
        signals,
        "throttling",
        "data-fetch",
        f"The store throttles: {signals.input.store.throttles} of {signals.input.store.requests} requests were "
        f"answered with slow down, and {percent(signals.data_wait_share)} of the run waits for data",
        (f"{percent(share)} of the requests were refused and sent again after a pause",),
        fix,
        faster_steps(signals, signals.step_with(signals.input.workers, fetch_factor=0.1), error=0.3),
    )
