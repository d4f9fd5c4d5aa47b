"""Signals of runs that never were: a healthy one, and what tests change of it."""

from typing import Any

from flatout.diagnosis.signals import Epoch, Signals, Step

STEPS_PER_EPOCH, EPOCHS = 50, 4


def steps(
    own: float = 0.1, wait: float = 0.002, epochs: int = EPOCHS, first_epoch_wait: float | None = None, gap: float = 0.0
) -> tuple[Step, ...]:
    """Steps of `own` seconds beside waiting; the first epoch and the start of each may wait longer."""
    made = []
    for epoch in range(epochs):
        for index in range(STEPS_PER_EPOCH):
            waited = first_epoch_wait if first_epoch_wait is not None and epoch == 0 else wait
            waited += gap if index == 0 and epoch > 0 else 0.0
            made.append(Step(epoch, index, 64, own + waited, waited, loss=2.0 - 0.2 * epoch))
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
        "device_kind": "cuda",
        "cores": 8,
        "threads": 8,
        "batch_size": 64,
        "epochs_planned": EPOCHS,
        "epochs": tuple(Epoch(n, 2.0 - 0.2 * n, 2.1 - 0.15 * n, 0.2 + 0.1 * n) for n in range(EPOCHS)),
        "classes": 10,
        "workers": 4,
        "prefetch": 8,
        "samples_loaded": batches * 64,
        "fetch_seconds": 0.01 * batches,
        "decode_seconds": 0.2 * batches,
        "augment_seconds": 0.05 * batches,
        "bytes_read": 1e6 * batches,
        "dataset_bytes": 1e9,
        "cache": "auto",
        "memory_total_bytes": 32e9,
        "validations": 4,
        "checkpoints": 4,
        "usd_per_hour": 1.0,
    }
    return Signals(**{**values, **changes})
