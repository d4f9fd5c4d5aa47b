"""The code of docs/use-the-loader.md, run as it stands there: only paths, sizes and the device are replaced."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flatout
from loader_examples import BATCH, CLASSES, PER_CLASS, example, make_pictures


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "data")


def test_the_plain_loop(data: Path) -> None:
    replaced = [
        ('"data/imagenet-100"', repr(str(data))), ("batch_size=256", f"batch_size={BATCH}"), ("range(10)", "range(2)"),
        ('"cuda"', '"cpu"'), ('workers="auto"', "workers=2"),
        ("...", "losses.append(loss); seen.append((epoch, batch.sample_ids, images))"),
    ]  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, CLASSES))
    space: dict[str, Any] = {"model": model, "losses": [], "seen": []}
    exec(example("A plain loop", *replaced), space)
    assert len(space["losses"]) == 2 * CLASSES * PER_CLASS // BATCH
    assert all(torch.isfinite(loss) for loss in space["losses"])
    for epoch in range(2):
        ids = torch.cat([ids for seen, ids, _ in space["seen"] if seen == epoch])
        assert sorted(ids.tolist()) == list(range(CLASSES * PER_CLASS))
    expected = flatout.open_batches(data, view="train-224", batch_size=BATCH, seed=0, workers=0)
    for (_, ids, images), batch in zip(space["seen"], expected.epoch(0), strict=False):
        assert torch.equal(ids, batch.sample_ids)
        mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        torch.testing.assert_close(images, (batch.images / 255 - mean) / std, atol=1e-5, rtol=1e-5)
    expected.close()


def test_resuming_in_the_middle(data: Path) -> None:
    with flatout.open_batches(data, view="train-64", batch_size=BATCH, workers=2, cache="off") as source:
        whole = [batch.images.clone() for batch in source.epoch(1)]
        assert source.stages.bytes_read > 0
        rest = list(source.epoch(1, start=4))
    assert [batch.index for batch in rest] == [4, 5]
    assert all(torch.equal(batch.images, image) for batch, image in zip(rest, whole[4:], strict=True))


class HandDriven:
    """What Lightning's trainer does with an iterable, as far as the example relies on it."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.seen: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def fit(self, module: object, datamodule: Any) -> None:
        self.batches = datamodule.train_dataloader()
        for _ in range(self.epochs):
            self.seen.append([(images.clone(), labels.clone()) for images, labels in self.batches])


def from_the_library(data: Path, epochs: int) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    with flatout.open_batches(data, view="train-224", batch_size=BATCH, workers=0) as source:
        for epoch in range(epochs):
            yield [(batch.images.clone(), batch.labels.clone()) for batch in source.epoch(epoch)]


def run_lightning(data: Path, epochs: int) -> dict[str, Any]:
    path = ('"data/", view="train-224"', f'{str(data)!r}, view="train-224", batch_size={BATCH}, workers=2')
    space: dict[str, Any] = {"flatout": flatout, "trainer": HandDriven(epochs), "module": SimpleNamespace()}
    space["lightning"] = SimpleNamespace(LightningDataModule=object)
    exec(example("Lightning", path), space)
    return space


def test_the_iterable_for_lightning(data: Path) -> None:
    trainer = run_lightning(data, 3)["trainer"]
    assert len(trainer.batches) == CLASSES * PER_CLASS // BATCH
    for seen, expected in zip(trainer.seen, from_the_library(data, 3), strict=True):
        assert len(seen) == len(trainer.batches)
        for (images, labels), (own_images, own_labels) in zip(seen, expected, strict=True):
            assert torch.equal(images, own_images)
            assert torch.equal(labels, own_labels)
    assert not torch.equal(trainer.seen[0][0][0], trainer.seen[1][0][0])  # each entry is the next epoch
    trainer.batches.source.close()


def test_the_loader_for_timm(data: Path) -> None:
    space = run_lightning(data, 0)
    space |= {"device": "cpu"}
    exec(example("A timm-style loop"), space)
    source = space["trainer"].batches.source
    loader = space["TimmLoader"](source)
    ((images, labels), *_), expected = list(loader), next(from_the_library(data, 1))
    assert len(loader) == len(expected)
    assert images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(images, flatout.normalize(expected[0][0], "train-224"), atol=1e-5, rtol=1e-5)
    assert torch.equal(labels, expected[0][1])
    source.close()


def test_val_in_order(data: Path) -> None:
    with flatout.open_batches(data, view="eval-64", batch_size=BATCH, split="val", shuffle=False, workers=1) as source:
        ids = torch.cat([batch.sample_ids for batch in source.epoch(0)])
    assert ids.tolist() == list(range(CLASSES * PER_CLASS))


@pytest.mark.parametrize("wrong", [{"split": "test"}, {"batch_size": 25}, {"view": "train-63"}, {"cach": "off"}])
def test_mistakes_are_one_line(data: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"; ") as refused:
        flatout.open_batches(data, **{"view": "train-64", "batch_size": 4, **wrong})
    assert "\n" not in str(refused.value)
    assert type(refused.value).__module__ == "flatout.errors"
