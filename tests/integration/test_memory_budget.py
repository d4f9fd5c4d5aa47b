"""Loading stays within data.memory, with all its processes, and does not grow from epoch to epoch."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flatout.errors import ConfigError
from flatout.machine.budgets import fit_batches
from training import DEADLINE_SECONDS

BUDGET_BYTES, EPOCHS = 160_000_000, 5
SCRIPT = """
import json, sys
import psutil
from flatout.commands.library import open_batches  # before the first reading: code is no part of the budget

def tree_bytes():  # what worker processes share with others (libraries, our own buffers) is counted once
    me = psutil.Process()
    return me.memory_info().rss + sum(child.memory_full_info().uss for child in me.children(recursive=True))

data, kind, cache, budget, epochs = sys.argv[1:]
before = tree_bytes()
source = open_batches(
    data, view="train-224", batch_size=64, workers=2, worker_kind=kind, cache=cache, memory=int(budget)
)
peaks = [max(tree_bytes() for _ in source.epoch(epoch)) - before for epoch in range(int(epochs))]
cached = source.cache.arena.used_bytes if source.cache else 0
source.close()
print(json.dumps({"peaks": peaks, "cached": cached}))
"""


def make_photos(root: Path, count: int) -> Path:
    for number in range(count):
        coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(coarse).resize((320, 270), Image.Resampling.BICUBIC).save(out, "JPEG")
        path = root / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
    return root


@pytest.mark.parametrize(("kind", "cache", "count"), [("thread", "memory", 1024), ("process", "off", 512)])
def test_loading_stays_within_its_memory(tmp_path: Path, kind: str, cache: str, count: int) -> None:
    """1024 of these photos, kept as planes, are 133 MB: more than the budget leaves for a cache."""
    photos = make_photos(tmp_path, count)
    command = [sys.executable, "-c", SCRIPT, str(photos), kind, cache, str(BUDGET_BYTES), str(EPOCHS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["cached"] > 0.5 * BUDGET_BYTES) == (cache == "memory")
    assert max(found["peaks"]) <= 1.1 * BUDGET_BYTES, found
    one_batch = 64 * 3 * 224 * 224  # more or less are in flight when a reading is taken
    assert found["peaks"][-1] <= found["peaks"][1] + 1.5 * one_batch, found


def test_fewer_batches_are_prepared_ahead_where_memory_is_short() -> None:
    assert fit_batches(100, 10, 4) == (4, 40)
    assert fit_batches(50, 10, 4) == (3, 0)
    with pytest.raises(ConfigError, match="3 must fit"):
        fit_batches(29, 10, 4)
