"""The same machine is much cheaper when it may be taken away."""

from flatout.diagnosis.finding import Finding, Fix, percent
from flatout.diagnosis.signals import Signals
from flatout.units import format_usd


def find(signals: Signals) -> Finding | None:
    price, spot = signals.cost.usd_per_hour, signals.cost.spot_usd_per_hour
    if signals.cost.spot or not price or spot is None or spot >= 0.7 * price:
        return None
    hours = signals.time.wall_seconds / 3600
    return Finding(
        "spot-price",
        None,
        f"A spot machine costs {percent(1 - spot / price)} less, and a run that is taken away resumes",
        (f"{format_usd(spot)} against {format_usd(price)} an hour",),
        Fix("use spot machines; checkpoint every few minutes", {"cost.spot": True}),
        usd=hours * (price - spot),
    )
