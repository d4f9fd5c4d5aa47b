"""Logs that other programs wrote, in our words: which of their columns is which of ours, and what each epoch says."""

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.errors import DataError
from flatout.runs.events import read_scalars
from flatout.runs.steps import parse_float
from flatout.untrusted import MAX_LINE_CHARACTERS, MAX_NUMBER, MAX_TABLE_BYTES, blamed_as, open_text, read_json

_TRAIN, _VAL = ("train", "training"), ("val", "valid", "validation", "eval", "test")
_ACCURACY = {
    "top1": ("top1", "acc1", "acc", "accuracy", "top1_accuracy", "acc_top1", "accuracy_top1"),
    "top5": ("top5", "acc5", "top5_accuracy", "acc_top5", "accuracy_top5"),
}


def _names() -> dict[str, tuple[str, ...]]:
    """For each of our columns the names that others give it, best first; `/`, `-`, `.` and spaces count as `_`."""
    return {
        "epoch": ("epoch", "epochs", "train_epoch"),
        "step": ("step", "global_step", "iteration", "iter", "steps"),
        "loss": ("train_loss_step", "train_step_loss", "batch_loss", "loss_step"),
        "train_loss": (
            *(f"{split}_{name}" for split in _TRAIN for name in ("loss_epoch", "epoch_loss", "loss")),
            "loss_train",
            "epoch_train_loss",
            "loss",
        ),
        "val_loss": (*(f"{split}_{name}" for split in _VAL for name in ("loss_epoch", "loss")), "loss_val"),
        **{
            ours: tuple(f"{split}_{name}" for split in _VAL for name in names) + names
            for ours, names in _ACCURACY.items()
        },
        "learning_rate": ("learning_rate", "lr", "train_learning_rate", "train_lr"),
        "epoch_seconds": ("epoch_seconds", "epoch_time", "epoch_time_s", "time_epoch"),
        "time_unix": ("time_unix", "wall_time", "timestamp"),
    }


@dataclass(frozen=True)
class ForeignLog:
    """Another program's log in our columns; what it does not say is None."""

    kind: str
    columns: dict[str, str]
    """Ours -> theirs."""
    unused: tuple[str, ...]
    notes: tuple[str, ...]
    epochs: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    wall_seconds: float | None


def match_columns(theirs: Iterable[str]) -> dict[str, str]:
    """Which of their columns is which of ours; each of theirs at most once."""
    plain = {re.sub(r"[^a-z0-9]+", "_", name.lower().replace("@", "")).strip("_"): name for name in theirs}
    found: dict[str, str] = {}
    for ours, names in _names().items():
        match = next((plain[name] for name in names if name in plain and plain[name] not in found.values()), None)
        if match is None and ours == "learning_rate":  # Lightning's monitor: lr-SGD, lr-AdamW/pg1
            match = next((name for key, name in plain.items() if key.startswith("lr_")), None)
        if match is not None:
            found[ours] = match
    left = [plain[name] for name in ("train_loss", "training_loss", "loss") if name in plain]
    if "loss" not in found and (spare := [name for name in left if name not in found.values()]):
        found["loss"] = spare[0]  # an epoch's loss has its own column: this one is of the steps
    return found


def read_foreign(path: Path) -> ForeignLog:
    """A CSV file, an event file, or a folder that holds either."""
    if path.is_dir():
        try:
            events = sorted(each for each in path.rglob("*tfevents*") if each.is_file())
            states = sorted(path.rglob("trainer_state.json"), key=lambda found: found.stat().st_mtime)
        except OSError as error:  # a tree that is no folder of logs: /proc, links that lead round
            raise DataError(f"{path} cannot be searched for logs: {error.strerror}; give the log itself") from None
        tables = [path / name for name in ("metrics.csv", "summary.csv") if (path / name).is_file()]
        if states:
            return _read_trainer_state(states[-1])  # every checkpoint has one; the newest tells all
        if not events and not tables:
            raise DataError(
                f"{path} holds no TensorBoard event file, no metrics.csv, no summary.csv and no trainer_state.json; "
                "give the log itself"
            )
        return _read_csv(tables[0]) if tables else _read_events(events)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a CSV log, an event file or a folder with one of them")
    if path.name == "trainer_state.json":
        return _read_trainer_state(path)
    return _read_events([path]) if "tfevents" in path.name else _read_csv(path)


def _read_trainer_state(path: Path) -> ForeignLog:
    """Of a Hugging Face Trainer: its log_history has a mapping for each time it logged."""
    with blamed_as(DataError):
        state = read_json(path)
    history = state.get("log_history") if isinstance(state, dict) else None
    logged = [each for each in history if isinstance(each, dict)] if isinstance(history, list) else []
    if not logged:
        raise DataError(f"{path} has no log_history; nothing was logged yet, or it is not a Trainer's")
    names = list(dict.fromkeys(name for each in logged for name in each))
    rows = [{name: parse_float(each.get(name)) for name in names} for each in logged]
    for row in rows:
        if (passed := row.get("epoch")) is not None and math.isfinite(passed):  # 1.0 is the end of the first one
            row["epoch"] = max(0.0, math.ceil(passed) - 1.0)
    return _in_our_words("huggingface", str(path), names, rows)


def _read_csv(path: Path) -> ForeignLog:
    try:
        with open_text(path, MAX_TABLE_BYTES, "replace", newline="") as file:
            first = file.readline(MAX_LINE_CHARACTERS)
            file.seek(3 if first.startswith("\ufeff") else 0)  # the mark that some programs put first
            reader = csv.DictReader(file, delimiter=max(",;\t", key=first.count))
            names = [name for name in reader.fieldnames or [] if name]
            rows = [{name: parse_float(row.get(name)) for name in names} for row in reader]
    except csv.Error as error:
        raise DataError(f"{path} is no CSV table: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    kind = "timm" if "eval_top1" in names else "csv"
    return _in_our_words(kind, str(path), names, rows)


def _read_events(paths: list[Path]) -> ForeignLog:
    rows: dict[int, dict[str, float | None]] = {}
    tags: dict[str, None] = {}
    for scalar in (scalar for path in paths for scalar in read_scalars(path)):
        tags[scalar.tag] = None
        row = rows.setdefault(scalar.step, {"step": scalar.step, "wall_time": scalar.time_unix})
        row[scalar.tag] = scalar.value
    if not rows:
        raise DataError(f"{paths[0]} holds no scalars; give the folder that the training script logged to")
    ordered = [rows[step] for step in sorted(rows)]
    return _in_our_words("tensorboard", str(paths[0].parent), ["step", "wall_time", *tags], ordered)


def _in_our_words(kind: str, path: str, names: list[str], rows: list[dict[str, float | None]]) -> ForeignLog:
    columns = match_columns(names)
    if not columns.keys() & {"epoch", "step"} or not columns.keys() & {
        "loss",
        "train_loss",
        "val_loss",
        "top1",
        "top5",
    }:
        raise DataError(
            f"{path} has the columns {', '.join(names[:12])[:300] or 'none'}; an import needs epoch or step, "
            "and a loss or an accuracy"
        )
    if not rows:
        raise DataError(f"{path} has a header but no rows; nothing was logged yet")
    ours = [{name: _sound(name, row.get(theirs)) for name, theirs in columns.items()} for row in rows]
    notes = [*_number_epochs(ours), *_as_fractions(kind, ours)]
    steps = _steps(ours)
    times, seconds = (
        [value for row in ours if (value := row.get(name)) is not None] for name in ("time_unix", "epoch_seconds")
    )
    wall = max(times) - min(times) if len(times) > 1 else math.fsum(seconds) if seconds else None
    unused = tuple(name for name in names if name not in columns.values())
    return ForeignLog(kind, columns, unused, tuple(notes), _epochs(ours), steps, wall)


def _number_epochs(rows: list[dict[str, Any]]) -> list[str]:
    """Whole numbers from 0. Without any, an epoch ends where a validation was logged."""
    if any(row.get("epoch") is not None for row in rows):
        first = min(int(row["epoch"]) for row in rows if row.get("epoch") is not None)
        for row in rows:
            row["epoch"] = None if row.get("epoch") is None else int(row["epoch"]) - (first == 1)
        _fill_epochs(rows)
        return ["epochs were counted from 1"] if first == 1 else []
    number = 0
    for row in rows:
        row["epoch"] = number
        number += any(row.get(name) is not None for name in ("val_loss", "top1", "top5"))
    return ["no epoch in the log: each validation ends one"]


def _fill_epochs(rows: list[dict[str, Any]]) -> None:
    """TensorBoard logs the epoch now and then: rows in between belong to the next one that is named."""
    following = None
    for row in reversed(rows):
        following = row["epoch"] = row["epoch"] if row["epoch"] is not None else following
    last = 0
    for row in rows:
        last = row["epoch"] = row["epoch"] if row["epoch"] is not None else last


def _as_fractions(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """Accuracy as a share of 1: timm writes per cent, and a log with values above 1 does too."""
    notes = []
    for name in ("top1", "top5"):
        values = [row[name] for row in rows if row.get(name) is not None]
        if values and (kind == "timm" or max(values) > 1):
            notes.append(f"{name} was in per cent")
            for row in rows:
                row[name] = None if row.get(name) is None else row[name] / 100
    return notes


def _epochs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each epoch: the last value of each column; the mean of the steps' losses where there is no other."""
    names = ("step", "train_loss", "val_loss", "top1", "top5", "learning_rate", "time_unix")
    found: dict[int, dict[str, Any]] = {}
    losses: dict[int, list[float]] = {}
    for row in rows:
        epoch = found.setdefault(row["epoch"], {"epoch": row["epoch"]})
        epoch |= {name: row[name] for name in names if row.get(name) is not None}
        if "step" in epoch:
            epoch["step"] = int(epoch["step"])
        if row.get("loss") is not None:
            losses.setdefault(row["epoch"], []).append(row["loss"])
    for number, epoch in found.items():
        if "train_loss" not in epoch and number in losses:
            epoch["train_loss"] = sum(losses[number]) / len(losses[number])
    return [found[number] for number in sorted(found)]


def _steps(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with a loss of a step: those named so, or several losses in an epoch."""
    rated = [row for row in rows if row.get("step") is not None]
    if not any(row.get("loss") is not None for row in rated):
        trained = [row for row in rated if row.get("train_loss") is not None]
        if len(trained) < 2 * len({row["epoch"] for row in trained}):
            return []  # one a epoch: that is the epoch's
        for row in trained:
            row["loss"] = row.pop("train_loss")
    by_step = {int(row["step"]): row for row in rated if row.get("loss") is not None}
    names = ("epoch", "loss", "learning_rate", "time_unix")
    return [{"step": step, **{name: by_step[step].get(name) for name in names}} for step in sorted(by_step)]


def _sound(name: str, value: float | None) -> float | None:
    """None for what cannot be used. A loss may be below 0, and NaN or infinite (the run diverged); others may not."""
    if value is None:
        return None
    usable = abs(value) <= MAX_NUMBER or not math.isfinite(value) if "loss" in name else 0 <= value < 1 << 53
    return value if usable else None


def summary_of(log: ForeignLog, name: str, source: str, accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """summary.json of an imported run: what the log does not tell is null."""
    return {
        "run": name,
        "status": "completed",
        "cause": None,
        "imported": {
            "from": source,
            "kind": log.kind,
            "columns": log.columns,
            "columns_not_used": list(log.unused),
            "notes": list(log.notes),
        },
        "device": {"name": None, "emulated": False, "count": None},
        "world_size": None,
        "config_digest": None,
        "data_fingerprint": None,
        "state_digest": None,
        "attempts": 1,
        "samples_seen": None,
        "accuracy": dict(accuracy),
        "convergence": {"verdict": None, "why": None},
        "throughput": {"samples_per_second": None, "steps_per_second": None, "step_seconds": None},
        "time": {"wall_seconds": log.wall_seconds, "parts": {}},
        "data": {},
        "device_use": {},
        "network": {},
        "host": {},
        "checkpoint": {},
        "cost": {"total_usd": None, "lines": [], "prices_dated": None},
    }
