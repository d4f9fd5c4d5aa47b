"""Showing what is on disk: runs, their reports, configurations. Needs no torch."""

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from flatout.config.loading import flat, load_config
from flatout.config.loading import parse_assignments as parse_assignments
from flatout.reports.configuration import config_table
from flatout.reports.listing import runs_table
from flatout.runs import list_runs


def run_list(folder: Path) -> list[dict[str, Any]]:
    return [{"directory": str(run.directory), **run.summary} for run in list_runs(folder)]


def runs_shown(folder: Path) -> RenderableType:
    found = list_runs(folder)
    return runs_table(found) if found else f"no runs in {folder}; make one with: flatout demo"


def show_config(path: Path, assignments: list[str]) -> dict[str, dict[str, Any]]:
    """Every key with its value and origin."""
    loaded = load_config(path, parse_assignments(assignments))
    return {key: {"value": value, "origin": loaded.origins[key]} for key, value in flat(loaded.config)}


def config_shown(keys: dict[str, dict[str, Any]]) -> Table:
    return config_table([(key, row["value"], row["origin"]) for key, row in keys.items()])
