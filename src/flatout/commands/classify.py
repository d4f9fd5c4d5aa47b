"""Classify files with a trained run: a row for each, with class names and probabilities, as they are done."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from flatout.commands.output_files import require_place
from flatout.data.source.layouts import holds_images
from flatout.data.source.pictures import picture_split
from flatout.errors import ConfigError, DataError, NoSpace
from flatout.trained.model import Classified, load
from flatout.training.display import Display

STDIN = "-"


def classify(
    run: Path,
    what: Sequence[str],
    out: Path | None = None,
    top: int = 5,
    as_json: bool = False,
    checkpoint: str = "best",
    device: str | None = None,
    workers: int | str = "auto",
    quiet: bool = True,
) -> dict[str, int]:
    """Writes CSV, or JSON lines, to `out` or to standard output; returns how many files were read and how many not.

    `what` are files, folders (their images, sorted) or "-" for paths from standard input, one a line. Rows are in the
    order of the files. An interrupted `out` is left as out.partial with the rows so far.
    """
    paths = list(_paths(what))
    if not paths:
        raise DataError(f"no image in {', '.join(what)}; give files, folders of images, or - for paths on stdin")
    if out is not None:
        require_place(out)
    model = load(run, checkpoint, device)
    rows = Rows(model.classes, min(top, len(model.classes)), as_json)
    done = {"files": len(paths), "classified": 0, "unreadable": 0}
    with Display(quiet) as display, _written(out) as file:
        display.begin("classifying", 0, len(paths))
        file.write(rows.header())
        for number, each in enumerate(model.stream(picture_split(paths), workers), 1):
            file.write(rows.row(each))
            done["unreadable" if each.probabilities is None else "classified"] += 1
            display.advance("classifying", number, len(paths), "files")
    return done


class Rows:
    """How a classified file is written, with the `top` most probable classes."""

    def __init__(self, classes: tuple[str, ...], top: int, as_json: bool) -> None:
        self._classes = classes
        self._top = top
        self._as_json = as_json

    def header(self) -> str:
        """The first line of a CSV; JSON lines have none."""
        ranked = [
            f"{name}{'' if k == 0 else f'_{k + 1}'}" for k in range(self._top) for name in ("class", "probability")
        ]
        return "" if self._as_json else _csv_line(["path", *ranked, "error"])

    def row(self, classified: Classified) -> str:
        found = self._ranked(classified.probabilities)
        path = classified.name
        if self._as_json:
            named = [{"class": name, "probability": chance} for name, chance in found]
            return json.dumps({"path": path, "predictions": named, "error": classified.error}) + "\n"
        empty = [""] * (2 * (self._top - len(found)))
        return _csv_line([path, *(cell for pair in found for cell in pair), *empty, classified.error or ""])

    def _ranked(self, chances: Any) -> list[tuple[str, float]]:
        if chances is None:
            return []
        order = np.argsort(-chances, kind="stable")[: self._top]
        return [(self._classes[k], round(float(chances[k]), 6)) for k in order.tolist()]


def _csv_line(cells: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _paths(what: Sequence[str]) -> Iterator[str]:
    if STDIN in what and len(what) > 1:
        raise ConfigError("- reads the paths from standard input; give it alone")
    if list(what) == [STDIN]:
        yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        return
    for each in what:
        if os.path.isdir(each):
            yield from _images_in(each)
        else:
            yield each


def _images_in(folder: str) -> Iterator[str]:
    """Sorted, hidden ones left out; what does not look like an image by its name is no picture here."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and holds_images([name]):
                yield os.path.join(root, name)


@contextmanager
def _written(out: Path | None) -> Iterator[IO[str]]:
    """Under its name only when it is complete."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    partial = out.with_name(f"{out.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
        os.replace(partial, out)
    except OSError as error:
        raise NoSpace(f"cannot write {out}: {error.strerror}; rows so far are in {partial}") from None
