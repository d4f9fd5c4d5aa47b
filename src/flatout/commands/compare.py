"""Compare runs by their directories, wherever they were made. Needs no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analysis.comparability import Side, unique_labels
from flatout.analysis.comparison import Comparison
from flatout.analysis.comparison import compare as compare_sides
from flatout.analysis.mean_epoch import mean_epoch
from flatout.analysis.values import flattened
from flatout.config.loading import flat, load_config
from flatout.errors import ConfigError, RunDirectoryError
from flatout.reports.compare_page import comparison_page
from flatout.reports.compare_text import render_comparison as render_comparison
from flatout.runs import Run, read_run
from flatout.runs.directory import write_text


def compare(*runs: Run | str | Path) -> Comparison:
    """Runs side by side, differences first; the first is what the others are compared with."""
    return compare_runs([run.directory if isinstance(run, Run) else Path(run) for run in runs])


def compare_runs(paths: Sequence[Path], html: Path | None = None) -> Comparison:
    """The first run is what the others are compared with; a page is written to `html`."""
    if len(paths) < 2:
        raise RunDirectoryError("a comparison needs two runs or more, for example: flatout compare runs/a runs/b")
    resolved = [path.resolve() for path in paths]
    for path, real in zip(paths, resolved, strict=True):
        if resolved.count(real) > 1:
            raise RunDirectoryError(f"{path} is given twice; a run is not compared with itself")
    sides = read_sides(paths)
    found = compare_sides(sides)
    if html is not None:
        _write(html, comparison_page(found, sides))
    return found


def read_sides(paths: Sequence[Path]) -> list[Side]:
    """What a comparison needs of every run."""
    runs = [read_run(path) for path in paths]
    labels = unique_labels(runs)
    return [Side(label, run, _settings(run), mean_epoch(run)) for label, run in zip(labels, runs, strict=True)]


def _settings(run: Run) -> dict[str, Any]:
    """With the defaults of today's keys, so that a run of an older version does not differ by what it did not know."""
    if not run.summary.get("imported"):
        try:
            return dict(flat(load_config(run.config).config))
        except ConfigError:  # of a newer version, or edited
            pass
    return flattened(run.config)


def _write(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error.strerror}; give --html another place") from None
