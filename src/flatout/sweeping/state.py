"""sweep.json: what a sweep is, and what it has decided so far. Whole at any moment, whatever is killed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import BadFile, RunDirectoryError
from flatout.runs.directory import read_json, write_json
from flatout.sweeping.halving import JobOutcome
from flatout.untrusted import check_shape

FILE = "sweep.json"
_OUTCOME = {"configuration": "count", "value": "number", "cause": "text"}
_SHAPE = {
    "plan": {},
    "rungs": [{"epochs": "count", "outcomes": [_OUTCOME], "kept": ["count"], "seconds": "amount"}],
    "spent_seconds": "amount",
    "rung_began_at": "amount",
}


@dataclass(frozen=True)
class FinishedRung:
    """A rung that was decided: it is never trained or decided again."""

    epochs: int
    outcomes: tuple[JobOutcome, ...]
    kept: tuple[int, ...]
    seconds: float
    """That its jobs took side by side, over all attempts."""


@dataclass
class SweepState:
    """`plan` is compared with the command's: another plan is another sweep."""

    plan: Mapping[str, Any]
    rungs: list[FinishedRung] = field(default_factory=list)
    spent_seconds: float = 0.0
    rung_began_at: float = 0.0
    """`spent_seconds` when the present rung began."""

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def read_state(folder: Path, plan: Mapping[str, Any]) -> SweepState:
    """Where the sweep of this plan goes on; the beginning where there is none yet."""
    path = folder / FILE
    if not path.exists():
        return SweepState(plan)
    try:
        values = read_json(path)
        check_shape(values, _SHAPE, path)
        before, rungs = dict(values["plan"]), [_rung(each) for each in values["rungs"]]
        spent, began = float(values["spent_seconds"]), float(values["rung_began_at"])
    except (BadFile, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, BadFile) else f"cannot read {path}: it is damaged"
        raise RunDirectoryError(f"{why}; --fresh moves the sweep aside") from None
    changed = [key for key in {**before, **plan} if before.get(key) != plan.get(key)]
    if changed:
        raise RunDirectoryError(
            f"{folder} holds another sweep ({', '.join(changed)} differ); choose another --runs DIR, or --fresh to "
            "move it aside"
        )
    places = {at for rung in rungs for at in (*rung.kept, *(each.configuration for each in rung.outcomes))}
    if len(rungs) > len(plan["rungs"]) or (places and max(places) >= len(plan["configurations"])):
        raise RunDirectoryError(f"cannot read {path}: it has more than its plan; --fresh moves the sweep aside")
    return SweepState(plan, rungs, spent, began)


def _rung(values: Mapping[str, Any]) -> FinishedRung:
    """TypeError or KeyError where something is missing."""
    outcomes = tuple(
        JobOutcome(int(each["configuration"]), each.get("value"), each.get("cause")) for each in values["outcomes"]
    )
    return FinishedRung(int(values["epochs"]), outcomes, tuple(map(int, values["kept"])), float(values["seconds"]))
