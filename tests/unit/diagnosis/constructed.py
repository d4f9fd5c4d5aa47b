"""Signals of runs that never were: a healthy one, and what tests change of it."""

from dataclasses import fields, replace
from typing import Any

from flatout.diagnosis import signal_groups as groups
from flatout.diagnosis.signal_groups import Epoch
from flatout.diagnosis.signals import Signals
from flatout.runs.steps import StepRow

STEPS_PER_EPOCH, EPOCHS = 50, 4
GROUPS = {
    "time": groups.TimeSignals,
    "recipe": groups.RecipeSignals,
    "input": groups.InputSignals,
    "device": groups.DeviceSignals,
    "host": groups.HostSignals,
    "learning": groups.LearningSignals,
    "cost": groups.CostSignals,
}


def row(
    epoch: int, index: int, samples: int, seconds: float, waited: float, loss: float | None = None, **more: Any
) -> StepRow:
    number = epoch * STEPS_PER_EPOCH + index + 1
    return StepRow(1, number, epoch, index, samples, "", loss, None, seconds, waited, **more)


def steps(
    own: float = 0.1, wait: float = 0.002, epochs: int = EPOCHS, first_epoch_wait: float | None = None, gap: float = 0.0
) -> tuple[StepRow, ...]:
    """Steps of `own` seconds beside waiting; the first epoch and the start of each may wait longer."""
    made = []
    for epoch in range(epochs):
        for index in range(STEPS_PER_EPOCH):
            waited = first_epoch_wait if first_epoch_wait is not None and epoch == 0 else wait
            waited += gap if index == 0 and epoch > 0 else 0.0
            made.append(row(epoch, index, 64, own + waited, waited, loss=2.0 - 0.2 * epoch))
    return tuple(made)


def signals(**changes: Any) -> Signals:
    """A healthy run beside an accelerator, less what the test breaks. The ledger follows from the steps."""
    made = changes.setdefault("steps", steps())
    waiting = sum(step.wait_seconds for step in made)
    own = sum(step.own_seconds for step in made)
    parts = {
        "startup": 2.0,
        "data_wait": waiting,
        "forward": 0.3 * own,
        "backward": 0.65 * own,
        "optimizer": 0.05 * own,
    }
    parts |= changes.pop("parts", {})
    batches = len(made)
    values: dict[str, Any] = {
        "wall_seconds": sum(parts.values()),
        "parts": parts,
        "kind": "cuda",
        "cores": 8,
        "machine_cores": 8,
        "threads": 8,
        "batch_size": 64,
        "recipe.epochs": EPOCHS,
        "learning.epochs": tuple(Epoch(n, 2.0 - 0.2 * n, 2.1 - 0.15 * n, 0.2 + 0.1 * n) for n in range(EPOCHS)),
        "classes": 10,
        "train_samples": 3200,
        "val_samples": 1000,
        "workers": 4,
        "prefetch": 8,
        "samples_loaded": batches * 64,
        "fetch_seconds": 0.01 * batches,
        "decode_seconds": 0.2 * batches,
        "augment_seconds": 0.05 * batches,
        "bytes_read": 1e6 * batches,
        "cache": "auto",
        "host.memory_total_bytes": 32e9,
        "validations": 4,
        "checkpoints": 4,
        "usd_per_hour": 1.0,
    }
    return regrouped({**values, **{NAMES.get(name, name): value for name, value in changes.items()}})


NAMES = {
    "epochs_planned": "recipe.epochs",
    "epochs": "learning.epochs",
    "device_kind": "kind",
    "memory_total_bytes": "host.memory_total_bytes",
    "device_memory_peak_bytes": "memory_peak_bytes",
    "device_memory_total_bytes": "device.memory_total_bytes",
}
"""Short names in tests; those of two groups with the group before them."""


def regrouped(values: dict[str, Any]) -> Signals:
    """Signals of fields by their own names, each of which goes to its group."""
    made: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
    rest = {}
    for name, value in values.items():
        room, _, field = name.rpartition(".")
        of = [room] if room else [each for each, kind in GROUPS.items() if name in {f.name for f in fields(kind)}]
        assert len(of) < 2, f"{name} is in {of}"
        if of:
            made[of[0]][field] = value
        else:
            rest[name] = value
    return Signals(**{name: kind(**made[name]) for name, kind in GROUPS.items()}, **rest)


def changed(signals: Signals, group: str, **changes: Any) -> Signals:
    """With other values in one of its groups."""
    return replace(signals, **{group: replace(getattr(signals, group), **changes)})
