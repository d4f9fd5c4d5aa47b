"""What follows a plan: files to start the chosen machine with, and how well earlier plans held."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.commands.plan import MachinePlan
from flatout.config.loading import config_digest, dump_config, load_config
from flatout.errors import BadFile, ConfigError, FlatoutError
from flatout.planning.cards import card_of_device
from flatout.planning.emit import emitted_files, tuned
from flatout.planning.options import Option
from flatout.reports.plan_page import plan_page
from flatout.reports.plan_text import plan_text as plan_text
from flatout.reports.plan_text import scores_text as scores_text
from flatout.runs import Run, list_runs, read_run
from flatout.runs.directory import read_json, write_json, write_text

PLANS = "plans"
"""Folder of stored plans, beside the runs."""


def emit(
    plan: MachinePlan,
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any],
    folder: Path,
    name: str | None,
) -> tuple[list[Path], str]:
    """The tuned recipe and a file for SkyPilot, Slurm and a shell, for the named option or the cheapest; and the digest
    by which a run of it is known."""
    option = _chosen(plan, name)
    changes = {**overrides, **tuned(option, plan.question.nodes, plan.question.max_usd)}
    config = load_config(source, changes).config
    folder.mkdir(parents=True, exist_ok=True)
    stem = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in option.machine.name)
    recipe = folder / f"{config.name}-{stem}.yaml"
    write_text(recipe, dump_config(config))
    written = [recipe]
    for ending, text in emitted_files(option, recipe.name, plan.question.nodes).items():
        written.append(folder / f"{config.name}-{stem}.{ending}")
        write_text(written[-1], text)
    return written, config_digest(config)


def _chosen(plan: MachinePlan, name: str | None) -> Option:
    option = plan.cheapest or plan.fastest if name is None else next((o for o in plan.options if o.name == name), None)
    if option is None:
        asked = "nothing fits within the limits" if name is None else f"no option is called {name!r}"
        raise ConfigError(f"{asked}: there is nothing to write a recipe for")
    if not option.fits:
        raise ConfigError(f"{option.name} does not hold the job: {option.memory.peak_bytes / 1e9:.1f} GB")
    return option


def find_plan(identity: str, folder: Path = Path("runs")) -> Path:
    """The stored plan of that name; an unknown one is refused before anything is trained."""
    path = folder / PLANS / f"{identity}.json"
    if not path.is_file():
        known = sorted(each.stem for each in (folder / PLANS).glob("*.json"))
        raise ConfigError(f"no plan {identity!r} in {folder / PLANS}; stored: {', '.join(known[-3:]) or 'none'}")
    return path


def follow_plan(identity: str, run: Path, folder: Path = Path("runs")) -> list[dict[str, Any]]:
    """Say in the plan that this run followed it; its score, or nothing where the plan was about other machines."""
    path = find_plan(identity, folder)
    plan = read_json(path)
    plan = {**plan, "followed_by": sorted({*plan.get("followed_by", []), str(run.resolve())})}
    write_json(path, plan)
    score = _score(plan, read_run(run))
    return [] if score is None else [score]


def score_plans(folder: Path) -> list[dict[str, Any]]:
    """Every stored plan whose recipe was then trained: by digest of the recipe, or as `flatout train --plan` says."""
    runs = list_runs(folder)
    scores = []
    for path in sorted((folder / PLANS).glob("*.json")):
        with suppress(BadFile, KeyError, TypeError, ValueError):
            plan = read_json(path)
            followed = runs + _elsewhere(plan, runs)
            scores += [score for run in followed if (score := _score(plan, run)) is not None]
    return scores


def _elsewhere(plan: Mapping[str, Any], listed: list[Run]) -> list[Run]:
    """Runs that followed the plan and lie in another folder; those that are gone are left out."""
    known, found = {str(run.directory.resolve()) for run in listed}, []
    for path in plan.get("followed_by", []):
        with suppress(FlatoutError):
            found += [read_run(Path(path))] if path not in known else []
    return found


def _score(plan: Mapping[str, Any], run: Run) -> dict[str, Any] | None:
    """On the machine that the run says it was, else on a card of its device's name."""
    named = str(run.directory.resolve()) in plan.get("followed_by", [])
    same = named or run.summary.get("config_digest") in plan["config_digests"]
    started = run.steps[0].time_unix if run.steps else None
    measured = (run.summary.get("throughput") or {}).get("samples_per_second")
    if not same or measured is None or (started is not None and started < plan["made_unix"]):
        return None
    card = card_of_device(str((run.summary.get("device") or {}).get("name") or ""))
    world = int(run.summary.get("world_size") or 1)
    options = [each for each in plan["options"] if card and each["gpu"] == card.name and each["gpus"] == world]
    if not options and named and len(plan["options"]) == 1:  # the only machine it was about
        options = plan["options"]
    if not options:
        return None
    option = options[0]
    planned = option["samples_per_second"]
    return {
        "plan": plan["plan"],
        "machine": option["machine"],
        "run": run.name,
        "planned": planned["value"],
        "measured": measured,
        "error": planned["value"] / measured - 1,
        "inside": planned["low"] <= measured <= planned["high"],
    }


def write_page(plan: Mapping[str, Any], path: Path) -> None:
    write_text(path, plan_page(plan))
