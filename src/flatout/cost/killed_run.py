"""The cost of a run that was killed, from what its files recorded: its own process could not price it."""

from collections.abc import Mapping
from typing import Any

from flatout.config.schema import CostConfig
from flatout.cost.catalogue import load_catalogue
from flatout.cost.ledger import run_usage, usage_cost
from flatout.errors import UserError


def price_killed_run(summary: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json of a run with its cost in it; unchanged where it has one, the run goes on, or it never recorded any
    time. `config` is the run's config.yaml. Nothing is written."""
    wall_seconds = (summary.get("time") or {}).get("wall_seconds")
    if summary.get("status") == "running" or summary.get("cost") or not wall_seconds or "cost" not in config:
        return summary
    return {**summary, "cost": _cost(wall_seconds, config["cost"], summary.get("data"))}


def _cost(wall_seconds: float, section: Any, data: dict[str, Any] | None) -> dict[str, Any]:
    try:
        config = CostConfig.model_validate(section)
        catalogue = load_catalogue(config.prices)
        return usage_cost(run_usage(wall_seconds, config, data), config, catalogue).to_dict()
    except (UserError, ValueError) as error:  # the run's own price file may be on another machine
        return {"total_usd": None, "lines": [], "prices_dated": None, "unpriced": [" ".join(str(error).split())]}
