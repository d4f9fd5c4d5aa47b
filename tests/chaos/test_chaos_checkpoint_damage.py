"""A damaged checkpoint is noticed, said, kept aside and replaced by the next older: the result does not change."""

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flatout.engine import checkpoint
from flatout.errors import CheckpointCorrupt
from training import assert_ledger, assert_same_training, checkpoints, command, summary


def flip_in(first: Callable[[bytes], int], last: Callable[[bytes], int], seed: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        chance = random.Random(seed)
        data[chance.randrange(first(bytes(data)), last(bytes(data)))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    return damage


def header_end(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def cut_to(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    return damage


DAMAGE = {
    "length of the header": flip_in(lambda data: 0, lambda data: 8, 1),
    "state in the header": flip_in(lambda data: data.index(b"progress"), lambda data: data.index(b"progress") + 60, 2),
    "header": flip_in(lambda data: 8, header_end, 3),
    "first tensors": flip_in(header_end, lambda data: header_end(data) + 500, 4),
    "somewhere in the data": flip_in(header_end, len, 5),
    "last byte": flip_in(lambda data: len(data) - 1, len, 6),
    "cut in the data": cut_to(0.7),
    "cut in the header": cut_to(0.0001),
    "empty": cut_to(0),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_falls_back_says_so_and_ends_the_same(
    half: Path, work: Path, uninterrupted: Path, damage: Callable[[Path], None]
) -> None:
    *_, older, newest = checkpoints(half)
    damage(newest)
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 0, finished.err
    assert newest.name in finished.err
    assert "falling back" in finished.err
    assert f"at step {int(older.stem[-9:])} " in finished.err
    assert newest.with_suffix(".damaged").exists()
    assert "falling back" in (half / "log.txt").read_text()
    assert_same_training(half, uninterrupted)
    assert_ledger(half)


def test_without_any_good_checkpoint_it_begins_anew_and_says_so(half: Path, work: Path, uninterrupted: Path) -> None:
    for path in checkpoints(half):
        cut_to(0.5)(path)
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 0, finished.err
    assert finished.err.count("falling back") == len(list((half / "checkpoints").glob("*.damaged")))
    assert "resuming" not in finished.err
    assert_same_training(half, uninterrupted)
    assert_ledger(half)


def test_stale_temporaries_are_removed(half: Path, work: Path, uninterrupted: Path) -> None:
    (half / "checkpoints" / "step-000000030.tmp").write_bytes(b"half a checkpoint")
    (half / "checkpoints" / "last.tmp").symlink_to("nowhere")
    assert command("train", "tiny.yaml", cwd=work).code == 0
    assert not list((half / "checkpoints").glob("*.tmp"))
    assert_same_training(half, uninterrupted)


def test_a_completed_run_whose_newest_checkpoint_broke_trains_the_end_again(
    half: Path, work: Path, uninterrupted: Path
) -> None:
    assert command("train", "tiny.yaml", cwd=work).code == 0
    cut_to(0.3)(checkpoints(half)[-1])
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 0
    assert "falling back" in finished.err
    assert summary(half)["status"] == "completed"
    assert_same_training(half, uninterrupted)


def test_every_flipped_bit_of_a_small_checkpoint_is_noticed(tmp_path: Path) -> None:
    """Any damage is a CheckpointCorrupt, never another exception and never a wrong value."""
    tensors = {"model/a": torch.arange(3, dtype=torch.float32), "rng/cpu": torch.arange(5, dtype=torch.uint8)}
    path = checkpoint.save(tmp_path, 7, tensors, {"progress": {"step": 7, "best": 0.25}, "metric": None})
    whole = path.read_bytes()
    unnoticed = []
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                checkpoint.load(path)
                unnoticed.append((place, bit))
            except CheckpointCorrupt:
                pass
    assert unnoticed == []
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointCorrupt):
            checkpoint.load(path)
