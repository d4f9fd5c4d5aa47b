"""sweep.json: what a sweep is, and what it has decided so far. Whole at any moment, whatever is killed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flatout.errors import RunDirectoryError
from flatout.runs.directory import read_json, write_json
from flatout.sweeping.halving import JobOutcome

FILE = "sweep.json"


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
    values = read_json(path)
    try:
        rungs = [
            FinishedRung(
                int(each["epochs"]),
                tuple(JobOutcome(**outcome) for outcome in each["outcomes"]),
                tuple(map(int, each["kept"])),
                float(each["seconds"]),
            )
            for each in values["rungs"]
        ]
        before, spent, began = values["plan"], float(values["spent_seconds"]), float(values["rung_began_at"])
    except (KeyError, TypeError, ValueError):
        raise RunDirectoryError(f"cannot read {path}: it is damaged; --fresh moves the sweep aside") from None
    changed = [key for key in {**before, **plan} if before.get(key) != plan.get(key)]
    if changed:
        raise RunDirectoryError(
            f"{folder} holds another sweep ({', '.join(changed)} differ); choose another --runs DIR, or --fresh to "
            "move it aside"
        )
    return SweepState(plan, rungs, spent, began)
