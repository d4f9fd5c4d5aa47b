"""What a run costs: dated prices, and a ledger whose lines add up to the total. Never imports torch."""

from flatout.cost.catalogue import Catalogue, load_catalogue
from flatout.cost.ledger import (
    CostLine,
    Ledger,
    SpendRates,
    Usage,
    hourly_rate_usd,
    run_usage,
    spend_rates,
    usage_cost,
)

__all__ = [
    "Catalogue",
    "CostLine",
    "Ledger",
    "SpendRates",
    "Usage",
    "hourly_rate_usd",
    "load_catalogue",
    "run_usage",
    "spend_rates",
    "usage_cost",
]
