"""Requests that had to be sent again: cold starts, dropped connections, time-outs."""

from flatout.diagnosis.finding import Finding, Fix, faster_steps, percent, saving
from flatout.diagnosis.rules.throttling import throttled_share
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    store = signals.input.store
    if store is None or not store.requests or (store.retries or 0) / store.requests <= 0.05:
        return None
    if throttled_share(signals) > 0.01:
        return None
    share = (store.retries or 0) / store.requests
    return saving(
        signals,
        "retries",
        "data-fetch",
        f"The store is unreliable: {store.retries} of {store.requests} requests had to be sent again",
        (f"{percent(share)} retried; {percent(signals.data_wait_share)} of the run waits for data",),
        Fix(
            "look at the path to the store (proxy, VPN, region); stage the data to read it once", {"data.stage": "auto"}
        ),
        faster_steps(signals, signals.step_with(signals.input.workers, fetch_factor=1 - share), error=0.3),
    )
