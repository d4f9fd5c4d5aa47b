"""Pixels of a decoded pack are compared with its index once, and again as soon as a file is another one."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_datasets import jpeg, opened, write_files

from flatout.config.schema import DataConfig
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import SHIPPED
from flatout.data.source import pack
from flatout.data.source.pack_writer import PackOptions, write_pack

SAMPLES = 8


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {f"train/{'ab'[n % 2]}/{n}.jpg": jpeg(n) for n in range(SAMPLES)}
    root = write_files(tmp_path / "files", files | {f"val/{name}/0.jpg": jpeg(1) for name in "ab"})
    list(write_pack(opened(root), tmp_path / "pack", PackOptions("decoded")))
    return tmp_path / "pack"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds later."""
    monkeypatch.setattr(pack, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10))


def read_all(root: Path) -> tuple[np.ndarray, int]:
    """What was verified when it was opened, and how many samples of an epoch could be used."""
    split = opened(root).train
    before = split.origins.verified.copy()
    recipe = BatchPlan(split, SHIPPED["train-64"], seed=0, batch_size=4)
    with open_loader(recipe, DataConfig(cache="off", max_quarantine_share=0.5), workers=0) as loader:
        return before, sum(len(batch.labels) for batch in loader.epoch(0))


@pytest.mark.usefixtures("settled")
def test_what_was_verified_is_known_to_the_next_start(packed: Path) -> None:
    before, used = read_all(packed)
    assert not before.any()
    assert used == SAMPLES
    before, used = read_all(packed)
    assert before.all()
    assert used == SAMPLES


@pytest.mark.usefixtures("settled")
def test_a_shard_that_was_written_over_is_verified_anew(packed: Path) -> None:
    """With its size and its times put back."""
    read_all(packed)
    shard = next(packed.glob("train-*.data"))
    status = shard.stat()
    with shard.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)[0]
        file.seek(100)
        file.write(bytes([byte ^ 1]))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shard.stat().st_mtime_ns == status.st_mtime_ns
    before, used = read_all(packed)
    assert not before.any()
    assert used == SAMPLES - 1
    before, used = read_all(packed)
    assert before.sum() == SAMPLES - 1, "what differs is never verified"
    assert used == SAMPLES - 1


def test_of_a_pack_that_was_just_written_nothing_is_remembered(packed: Path) -> None:
    read_all(packed)
    assert not read_all(packed)[0].any()


@pytest.mark.usefixtures("settled")
def test_a_damaged_or_foreign_book_is_learnt_again(packed: Path, tmp_path: Path) -> None:
    read_all(packed)
    books = list((tmp_path / "cache/flatout/digests").iterdir())
    assert books
    for damage in (b"", b"x" * 40, books[0].read_bytes()[:-1]):
        for book in books:
            book.write_bytes(damage)
        before, used = read_all(packed)
        assert not before.any()
        assert used == SAMPLES
