"""The cost of a run that was killed: it left nobody to price it, so whoever looks at it first does."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from flatout.config.schema import CostConfig
from flatout.cost.catalogue import load_catalogue
from flatout.cost.ledger import run_usage, usage_cost
from flatout.errors import UserError
from flatout.runs import Run, RunDirectory
from flatout.runs.directory import write_json


def settle(run: Run) -> Run:
    """The run with its cost, written down too; unchanged where it has one, goes on, or never recorded any time."""
    wall_seconds = (run.summary.get("time") or {}).get("wall_seconds")
    if run.status == "running" or run.summary.get("cost") or not wall_seconds or "cost" not in run.config:
        return run
    cost = _cost(wall_seconds, run.config["cost"], run.summary.get("data"))
    settled = replace(run, summary={**run.summary, "cost": cost})
    directory = RunDirectory(run.directory)
    with suppress(OSError):  # a read-only copy is still readable
        write_json(directory.cost, cost)
        write_json(directory.summary, settled.summary)
    return settled


def _cost(wall_seconds: float, section: Any, data: dict[str, Any] | None) -> dict[str, Any]:
    try:
        config = CostConfig.model_validate(section)
        catalogue = load_catalogue(config.prices)
        return usage_cost(run_usage(wall_seconds, config, data), config, catalogue).to_dict()
    except (UserError, ValueError) as error:  # the run's own price file may be on another machine
        return {"total_usd": None, "lines": [], "prices_dated": None, "unpriced": [" ".join(str(error).split())]}
