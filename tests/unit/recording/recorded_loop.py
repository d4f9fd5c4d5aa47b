"""A recording of what a block does in this process, and what it left behind."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from flatout.recording.files import FOLDER
from flatout.recording.ledger import ScriptLedger
from flatout.recording.patches import Hooks


@contextmanager
def recorded(run: Path) -> Iterator[ScriptLedger]:
    (run / FOLDER).mkdir(parents=True)
    ledger = ScriptLedger(run, time.perf_counter())
    hooks = Hooks(ledger)
    hooks.install()
    assert hooks.missing == []
    try:
        yield ledger
    finally:
        ledger.close({"cause": None})
        hooks.remove()


def events(run: Path, kind: str) -> list[Any]:
    lines = (run / FOLDER / "rank0.jsonl").read_text().splitlines()
    return [told[kind] for told in map(json.loads, lines) if kind in told]


def data(batch: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4), torch.zeros(16, dtype=torch.long)), batch)
