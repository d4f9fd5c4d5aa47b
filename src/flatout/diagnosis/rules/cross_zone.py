"""Data that crosses a zone or a region is paid for by the gigabyte."""

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals
from flatout.units import format_bytes, format_usd


def find(signals: Signals) -> Finding | None:
    moved, price = signals.cost.cross_zone_bytes, signals.cost.usd_per_gb_cross_zone
    if not moved or price is None:
        return None
    usd = moved / 1e9 * price
    return Finding(
        "cross-zone",
        None,
        f"{format_bytes(moved)} crossed zones or regions, for {format_usd(usd)}",
        (f"{format_usd(price)} a GB",),
        Fix("put machines and data in one zone"),
        usd=usd,
    )
