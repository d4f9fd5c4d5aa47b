"""Everything a report shows of a run beyond its summary and tables, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.analysis.activity import Activity, no_activity, read_activity
from flatout.analysis.convergence import judge
from flatout.analysis.epoch_ledger import EpochAccount, account_epochs
from flatout.config.tasks import best_metric
from flatout.errors import BadFile
from flatout.runs.directory import RunDirectory
from flatout.runs.reading import Run
from flatout.runs.tables import read_table
from flatout.untrusted import number, read_json


@dataclass(frozen=True)
class Details:
    """A run with what its larger files tell; empty where a file is not there (yet)."""

    run: Run
    activity: Activity
    accounts: list[EpochAccount]
    system: list[dict[str, str]]
    quarantine: list[dict[str, str]]
    findings: list[dict[str, Any]]
    diagnosis: str | None  # the verdict of `flatout explain`
    checkpoints: list[tuple[str, int]]
    classes: list[str]  # in the order of their labels

    @property
    def convergence(self) -> dict[str, Any]:
        """As the run judged itself; judged now where it could not (killed, or written by an older version)."""
        found = self.run.summary.get("convergence") or {}
        if found.get("verdict") and found.get("why"):
            return dict(found)
        summary, config = self.run.summary, self.run.config
        metric = best_metric(config)
        classes, emulated = (
            summary.get(part, {}).get(key) for part, key in (("data", "classes"), ("device", "emulated"))
        )
        return judge(self.run.epochs, metric, classes, emulated=bool(emulated)).to_dict()


def read_details(run: Run, with_spans: bool = True, system: list[dict[str, str]] | None = None) -> Details:
    """Reads the span file in one pass; `with_spans=False` leaves out what only that file tells. `system` are rows of
    system.csv where not all of them are wanted."""
    directory = RunDirectory(run.directory)
    activity = read_activity(directory.rank_spans(), run.steps) if with_spans else no_activity()
    findings, verdict = _findings(run.directory / "findings.json")
    return Details(
        run,
        activity,
        account_epochs(run, activity.ledger),
        run.system if system is None else system,
        read_table(directory.quarantine),
        findings,
        verdict,
        checkpoint_files(directory.checkpoints),
        _classes(directory.classes),
    )


def checkpoint_files(folder: Path) -> list[tuple[str, int]]:
    """Name and bytes of every file; links (best, last) with no bytes of their own."""
    if not folder.is_dir():
        return []
    return [
        (path.name, 0 if path.is_symlink() else path.stat().st_size)
        for path in sorted(folder.iterdir())
        if path.suffix == ".safetensors" and path.exists()
    ]


def _classes(path: Path) -> list[str]:
    """None of them for translation, and for a file that cannot be read."""
    try:
        names = read_json(path)
    except (OSError, BadFile):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _findings(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """As `flatout explain` left them; a file that cannot be read is as good as none."""
    try:
        values = read_json(path)
    except (OSError, BadFile):
        return [], None
    found = values.get("findings", []) if isinstance(values, dict) else values
    verdict = values.get("verdict") if isinstance(values, dict) else None
    dicts = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    return dicts, verdict if isinstance(verdict, str) else None


def numbers(rows: Sequence[Mapping[str, str]], column: str) -> list[float | None]:
    """A column as numbers; None for a blank, a word, or what is not finite."""
    return [number(row.get(column)) for row in rows]
