"""`flatout.open_batches` in other people's loops with two real ranks: the examples of docs/use-the-loader.md."""

import hashlib
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

import flatout
from flatout.data.loading.loader import Loader
from flatout.errors import FlatoutError
from flatout.machine import budgets
from loader_examples import BATCH, CLASSES, PER_CLASS, example, make_pictures

RANKS, SAMPLES = 2, CLASSES * PER_CLASS

PLAIN = """
import json, os, torch
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, {classes}))
seen = []
{code}
with open(os.environ["RANK"] + ".json", "w") as file:
    json.dump({{"seen": seen, "weights": [float(value.sum()) for value in model.parameters()]}}, file)
"""

LIGHTNING = """
import json, os, hashlib, torch, flatout, pytorch_lightning as lightning

seen = []

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 224 * 224, {classes})

    def training_step(self, batch, index):
        images, labels = batch
        seen.append([self.current_epoch, hashlib.sha256(images.numpy().tobytes()).hexdigest()])
        return torch.nn.functional.cross_entropy(self.layer(flatout.normalize(images).flatten(1)), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = lightning.Trainer(accelerator="cpu", devices={ranks}, strategy="ddp", max_epochs=2, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
module = Module()
{code}
with open(os.environ["RANK"] + ".json", "w") as file:
    json.dump({{"seen": seen, "weights": [float(value.sum()) for value in module.parameters()]}}, file)
"""


@pytest.fixture(autouse=True)
def _own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is shared with other tests: caches, services, and how many ranks divide it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(budgets, "_processes", 1)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "data")


def run_ranks(script: str, folder: Path) -> list[dict[str, Any]]:
    """What each rank saw, of a script that torchrun starts twice."""
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", "script.py"],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def images_of(data: Path, rank: int, epoch: int) -> list[torch.Tensor]:
    with flatout.open_batches(
        data, view="train-224", batch_size=BATCH, workers=0, rank=rank, world_size=RANKS
    ) as source:
        return [batch.images.clone() for batch in source.epoch(epoch)]


def test_a_plain_loop_under_torchrun(data: Path, tmp_path: Path) -> None:
    code = example(
        "Several ranks", ('"data/imagenet-100"', repr(str(data))), ("batch_size=128", f"batch_size={BATCH}"),
        ("optimizer.step()\n", "optimizer.step()\n            seen.append([epoch, batch.sample_ids.tolist()])\n"),
    )  # fmt: skip
    first, second = run_ranks(PLAIN.format(classes=CLASSES, code=code), tmp_path)
    assert first["weights"] == second["weights"], "the ranks trained one model"
    for epoch in range(2):
        halves = [[ids for seen, ids in rank["seen"] if seen == epoch] for rank in (first, second)]
        assert [len(ids) for ids in halves[0]] == [len(ids) for ids in halves[1]] == [BATCH] * (SAMPLES // BATCH // 2)
        with flatout.open_batches(data, view="train-224", batch_size=BATCH * RANKS, workers=0) as whole:
            wanted = [batch.sample_ids.tolist() for batch in whole.epoch(epoch)]
        assert [one + other for one, other in zip(*halves, strict=True)] == wanted, "slices of one global batch"


def test_lightning_under_torchrun(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    code = example(
        "Lightning", ('"data/", view="train-224"', f'{str(data)!r}, view="train-224", batch_size={BATCH}, workers=1')
    )
    ranks = run_ranks(LIGHTNING.format(classes=CLASSES, ranks=RANKS, code=code), tmp_path)
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank, said in enumerate(ranks):
        wanted = [
            [epoch, hashlib.sha256(images.numpy().tobytes()).hexdigest()]
            for epoch in range(2)
            for images in images_of(data, rank, epoch)
        ]
        assert said["seen"] == wanted


def ids(source: Loader) -> list[list[int]]:
    with source:
        return [batch.sample_ids.tolist() for batch in source.epoch(0)]


@pytest.mark.parametrize(("ranks", "batch", "left_out"), [(2, 4, 0), (3, 2, 0), (2, 10, 0), (2, 11, 2), (4, 5, 4)])
def test_every_rank_has_as_many_batches_and_none_is_empty(data: Path, ranks: int, batch: int, left_out: int) -> None:
    sources = [
        flatout.open_batches(data, view="train-64", batch_size=batch, workers=0, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    notes = [note for source in sources for note in source.notes if "left out" in note]
    assert len(notes) == (ranks if left_out else 0)
    by_rank = [ids(source) for source in sources]
    assert len({len(each) for each in by_rank}) == 1
    assert all(part for each in by_rank for part in each), "an empty batch has a loss that is not a number"
    seen = [sample for each in by_rank for part in each for sample in part]
    assert len(seen) == len(set(seen)) == SAMPLES - left_out


def test_validation_leaves_nothing_out(data: Path) -> None:
    options = {"view": "eval-64", "batch_size": 11, "split": "val", "shuffle": False, "workers": 0, "world_size": 2}
    by_rank = [ids(flatout.open_batches(data, rank=rank, **options)) for rank in range(2)]
    assert sorted(sample for each in by_rank for part in each for sample in part) == list(range(SAMPLES))


def test_one_global_batch_on_any_number_of_ranks(data: Path) -> None:
    def whole(ranks: int) -> list[list[int]]:
        options = {"view": "train-64", "global_batch": 8, "workers": 0, "world_size": ranks}
        by_rank = [ids(flatout.open_batches(data, rank=rank, **options)) for rank in range(ranks)]
        return [list(chain(*parts)) for parts in zip(*by_rank, strict=True)]

    assert whole(1) == whole(2) == whole(4)


def test_the_environment_of_torchrun_is_enough(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader may be opened before the process group."""
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    given = {"view": "train-64", "batch_size": BATCH, "workers": 0}
    found = ids(flatout.open_batches(data, **given))
    assert budgets._processes == 2, "ranks on one machine share its memory"
    assert found == ids(flatout.open_batches(data, rank=1, world_size=2, **given))
    assert sorted(chain(*ids(flatout.open_batches(data, world_size=1, **given)))) == list(range(SAMPLES))


@pytest.mark.parametrize(
    "wrong",
    [{"rank": 1}, {"rank": 2, "world_size": 2}, {"world_size": 2}, {"rank": 0, "world_size": 2, "batch_size": 1},
     {"rank": 0, "world_size": 2, "batch_size": 13}],
)  # fmt: skip
def test_impossible_places_are_refused(data: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(FlatoutError, match="rank"):
        flatout.open_batches(data, **{"view": "train-64", "batch_size": BATCH, **wrong})


def test_shared_is_shared(data: Path) -> None:
    """`shared=` of open_batches was read by nobody."""
    given = {"view": "train-64", "batch_size": BATCH, "workers": 0, "rank": 1, "world_size": 2}
    own = ids(flatout.open_batches(data, **given))
    source = flatout.open_batches(data, shared="auto", **given)
    assert any("shared" in note for note in source.notes)
    assert ids(source) == own
