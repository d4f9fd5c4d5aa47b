"""Equal names and sizes with other contents never meet, whatever keeps, packs or shares them."""

import hashlib
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from small_datasets import opened, write_files, write_tar
from test_staging import RemoteStore

from flatout.config.schema import DataConfig
from flatout.data.loading import prepare
from flatout.data.loading.loader import Loader, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.staging import staged
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import SHIPPED
from flatout.data.source import identity
from flatout.data.source.dataset import Dataset, Split
from flatout.data.source.pack import PackIndex, encode_index
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.errors import DataChanged, DataError, TooManyQuarantined
from flatout.service.protocol.specs import content_digest, describe, stream_name
from flatout.storage.local import FolderStore
from flatout.storage.locators import NO_LOCATOR, object_locator
from flatout.training.data_identity import RunIdentity
from twins import make_twins, replace_slyly, twin_files

COUNT = 16
ALL = np.arange(COUNT)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flatout"


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    return make_twins(tmp_path, COUNT)


def loader_of(split: Split, workers: int = 0, **data: Any) -> Loader:
    recipe = BatchPlan(split, replace(SHIPPED["train-64"], size=16, pad=2), seed=1, batch_size=4)
    return open_loader(recipe, DataConfig(**{"cache": "off", **data}), workers)


def pixels_of(split: Split, epochs: int = 1, **data: Any) -> list[str]:
    """A digest of the pixels of each batch."""
    loader = loader_of(split, **data)
    try:
        batches = [batch for epoch in range(epochs) for batch in loader.epoch(epoch)]
        return [hashlib.sha256(batch.images.numpy().tobytes()).hexdigest() for batch in batches]
    finally:
        loader.close()


def swap_contents(root: Path, other: Path) -> None:
    for path in sorted(root.rglob("*.jpg")):
        replace_slyly(path, other / path.relative_to(root))


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["another folder", "the same folder"])
def test_a_disk_cache_never_serves_other_contents(twins: tuple[Path, Path], where: str) -> None:
    plain, inverted = twins
    expected = pixels_of(opened(inverted).train)
    assert pixels_of(opened(plain).train, cache="disk") != expected
    if where == "the same folder":
        swap_contents(plain, inverted)
    assert pixels_of(opened(plain if where == "the same folder" else inverted).train, 1, cache="disk") == expected


def test_a_disk_cache_serves_what_did_not_change_and_makes_the_rest_anew(twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    pixels_of(opened(plain).train, cache="disk")
    replace_slyly(plain / "train/a/000.jpg", inverted / "train/a/000.jpg")
    loader = loader_of(opened(plain).train, cache="disk")
    assert any("1 of an earlier run are of files that may have changed" in note for note in loader.notes)
    again = [hashlib.sha256(batch.images.numpy().tobytes()).hexdigest() for batch in loader.epoch(0)]
    assert (loader.stages.cache_hits, loader.stages.cache_misses) == (COUNT - 1, 1)
    loader.close()
    assert again == pixels_of(opened(plain).train)


def test_a_memory_cache_keeps_what_the_run_began_with_and_reading_again_is_refused(twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    kept, unkept = loader_of(opened(plain).train, cache="memory"), loader_of(opened(plain).train)
    first = [batch.images.numpy().copy() for batch in kept.epoch(0)]
    list(unkept.epoch(0))
    swap_contents(plain, inverted)
    assert all(np.array_equal(batch.images, old) for batch, old in zip(kept.epoch(0), first, strict=True))
    with pytest.raises(DataChanged, match=r"4 files changed \(train/.*, …\): the bytes are not those"):
        list(unkept.epoch(1))
    kept.close()
    unkept.close()


def test_changes_can_be_accepted_and_are_named_once(twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    dataset = opened(plain)
    dataset.train.origins.accepts_changes = True
    before = read_whole(dataset)
    loader = loader_of(dataset.train)
    list(loader.epoch(0))
    replace_slyly(plain / "train/a/000.jpg", inverted / "train/a/000.jpg")
    for epoch in (1, 2):
        list(loader.epoch(epoch))
    assert dataset.changed_names() == ("train/a/000.jpg",)
    assert dataset.content_fingerprint() not in (None, before)
    loader.close()


def remote(split: Split, root: Path) -> Split:
    """The same with its reader on a bucket, whose listing says what the folder's does."""
    return replace(split, reader=replace(split.reader, store=RemoteStore(FolderStore(str(root)))))  # type: ignore[type-var]


def test_a_stage_never_serves_other_contents(twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    with_stage, log, _ = staged(remote(opened(plain).train, plain), "auto")
    with_stage.read(ALL)
    assert log is not None
    log.close()
    expected = opened(inverted).train.read(ALL)
    swap_contents(plain, inverted)
    for root in twins:  # the same folder with other contents, and another one
        with_stage, log, note = staged(remote(opened(root).train, root), "auto")
        assert log is not None
        assert "filled during the first epoch" in str(note)
        assert with_stage.read(ALL) == expected
        log.close()


def test_a_stage_of_objects_that_nothing_proves_is_not_used_again(twins: tuple[Path, Path]) -> None:
    split = remote(opened(twins[0]).train, twins[0])
    split.origins.locators[:] = 0
    for _ in range(2):
        with_stage, log, _ = staged(split, "auto")
        assert log is not None
        assert len(log) == 0
        with_stage.read(ALL)
        assert len(log) == COUNT  # of use to this process
        log.close()


# --- shared batches ---------------------------------------------------------------------------------------------------


def test_streams_of_other_contents_have_other_names(twins: tuple[Path, Path]) -> None:
    def name(root: Path) -> str:
        recipe = BatchPlan(opened(root).train, SHIPPED["train-64"], seed=0, batch_size=4)
        return stream_name(describe(recipe, DataConfig(path=str(root)), "train"))

    plain, inverted = twins
    before = name(plain)
    assert before == name(plain)
    assert before != name(inverted)
    replace_slyly(plain / "train/a/000.jpg", inverted / "train/a/000.jpg")
    assert name(plain) != before


def test_copies_of_a_pack_share_and_of_a_folder_do_not(twins: tuple[Path, Path], tmp_path: Path) -> None:
    list(write_pack(opened(twins[0]), tmp_path / "pack", PackOptions()))
    for name, shares in (("pack", True), ("plain", False)):
        shutil.copytree(tmp_path / name, tmp_path / f"{name} copy")
        digests = {content_digest(opened(tmp_path / each).train) for each in (name, f"{name} copy")}
        assert (len(digests) == 1) == shares


# --- packs ------------------------------------------------------------------------------------------------------------


def exchange_shards(one: Path, other: Path) -> None:
    for shard in one.glob("*.data"):
        assert shard.stat().st_size == (other / shard.name).stat().st_size
        shutil.copy(other / shard.name, shard)


@pytest.mark.parametrize("mode", ["original", "decoded"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_pack_with_the_shards_of_another_is_not_trained_on(
    twins: tuple[Path, Path], tmp_path: Path, mode: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs = [tmp_path / "pack", tmp_path / "other"]
    for root, pack in zip(twins, packs, strict=True):
        list(write_pack(opened(root), pack, PackOptions(mode)))
    monkeypatch.setattr(prepare, "native", native if compiled else None)
    assert len(pixels_of(opened(packs[0]).train, 2)) == 8
    exchange_shards(*packs)
    with pytest.raises(TooManyQuarantined, match="bytes are not those that the pack's index names"):
        pixels_of(opened(packs[0]).train)


def test_packing_does_not_go_on_with_other_contents(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    small = PackOptions(shard_bytes=3000)
    packing = write_pack(opened(plain), tmp_path / "pack", small)
    next(packing)
    packing.close()
    with pytest.raises(DataError, match="unfinished one of other data"):
        list(write_pack(opened(inverted), tmp_path / "pack", small))
    list(write_pack(opened(plain), tmp_path / "pack", small))
    assert opened(tmp_path / "pack").train.read(ALL) == opened(plain).train.read(ALL)


# --- fingerprints -----------------------------------------------------------------------------------------------------


def read_whole(dataset: Dataset) -> str | None:
    for split in (dataset.train, dataset.val):
        assert split is not None
        pixels_of(split)
    return dataset.content_fingerprint()


def test_folder_tar_and_packs_agree_on_the_content_and_twins_do_not(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    dataset = opened(plain)
    assert dataset.content_fingerprint() is None
    fingerprint = read_whole(dataset)
    assert fingerprint is not None
    write_tar(tmp_path / "data.tar", twin_files(COUNT)[0])
    assert read_whole(opened(tmp_path / "data.tar")) == fingerprint
    for mode in ("original", "resized", "decoded"):
        list(write_pack(opened(plain), tmp_path / mode, PackOptions(mode, short_side=8)))
        assert opened(tmp_path / mode).content_fingerprint() == fingerprint  # known from the index
    assert opened(inverted).fingerprint == dataset.fingerprint
    assert read_whole(opened(inverted)) not in (None, fingerprint)
    assert opened(plain).content_fingerprint() == fingerprint  # remembered, without reading


def test_a_pack_of_the_first_version_is_read_and_known_by_names_and_sizes(
    twins: tuple[Path, Path], tmp_path: Path
) -> None:
    list(write_pack(opened(twins[0]), tmp_path / "pack", PackOptions()))
    new = opened(tmp_path / "pack")
    for name, split in (("train", new.train), ("val", new.val)):
        assert split is not None
        index = split.reader.index  # type: ignore[attr-defined]
        arrays = {key: value for key, value in index.arrays.items() if key != "content"}
        old = [hashlib.blake2b(data, digest_size=16).digest() for data in split.read(np.arange(len(split)))]
        arrays["digest"] = np.array(old, "V16")
        encoded = encode_index(PackIndex(index.mode, arrays, index.names))
        (tmp_path / "pack" / f"{name}.index").write_bytes(encoded)
    manifest = json.loads((tmp_path / "pack" / "pack.json").read_text())
    (tmp_path / "pack" / "pack.json").write_text(json.dumps(manifest | {"version": 1}))
    old_pack = opened(tmp_path / "pack")
    assert old_pack.content_fingerprint() is None
    assert old_pack.train.read(ALL) == new.train.read(ALL)
    assert read_whole(old_pack) == new.content_fingerprint()


# --- digests and locators ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_digest", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_every_way_to_read_gives_the_same_digests(
    twins: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, can_digest: bool, compiled: bool
) -> None:
    monkeypatch.setattr(prepare, "native", native if compiled else None)
    monkeypatch.setattr(prepare, "CAN_DIGEST", can_digest and identity.CAN_DIGEST)
    split = opened(twins[0]).train
    expected = [xxhash.xxh3_128_digest(data) for data in split.read(ALL)]
    pixels_of(split)
    assert [digest.tobytes() for digest in split.known_digests()] == expected


@pytest.mark.skipif(native is None, reason="needs the compiled decoder")
def test_the_compiled_call_refuses_digests_that_do_not_fit() -> None:
    assert native is not None
    geometry, status, digests = np.zeros((0, 27)), np.zeros(0, np.int32), np.zeros((1, 16), np.uint8)
    with pytest.raises(ValueError, match="digests has 16 items, expected 0"):
        native.load_slice([], None, geometry, 8, 0, np.zeros(0, np.uint8), status, None, False, digests)


def test_worker_processes_hand_their_digests_over(twins: tuple[Path, Path]) -> None:
    split = opened(twins[0]).train
    loader = loader_of(split, workers=1, worker_kind="process")
    list(loader.epoch(0))
    loader.close()
    assert identity.are_known(split.known_digests()).all()


def test_what_a_store_does_not_promise_is_no_locator() -> None:
    strong = {"e_tag": '"abc"', "version": None, "size": 3, "last_modified": None}
    assert object_locator("here", "x", strong) == object_locator("here", "x", dict(strong)) != NO_LOCATOR
    assert object_locator("here", "x", strong) != object_locator("there", "x", strong)
    for weak in ({"e_tag": None}, {"e_tag": 'W/"abc"'}):
        assert object_locator("here", "x", strong | weak) == NO_LOCATOR


def test_a_damaged_book_is_forgotten(twins: tuple[Path, Path], cache: Path) -> None:
    fingerprint = read_whole(opened(twins[0]))
    for path in (cache / "digests").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    again = opened(twins[0])
    assert again.content_fingerprint() is None
    assert read_whole(again) == fingerprint


# --- what a run writes down -------------------------------------------------------------------------------------------


def written_down(root: Path, run: Path, read: bool = True) -> None:
    dataset = opened(root)
    if read:
        read_whole(dataset)
    RunIdentity(run, dataset).save()
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)  # the run's own file must do


def test_files_that_changed_since_are_named(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    written_down(plain, tmp_path)
    for number in (0, 2, 4, 6):
        replace_slyly(plain / f"train/a/{number:03d}.jpg", inverted / f"train/a/{number:03d}.jpg")
    os.utime(plain / "train/b/001.jpg")  # the same contents
    (plain / "train/b/003.jpg").unlink()
    write_files(plain, {"train/b/new.jpg": b"x"})
    found = RunIdentity(tmp_path, opened(plain)).differences()
    assert str(found) == (
        "4 files changed since the checkpoint (train/a/000.jpg, train/a/002.jpg, train/a/004.jpg, …), "
        "1 file new since then (train/b/new.jpg), 1 file gone since then (train/b/003.jpg)"
    )
    assert found is not None
    assert found.reread == 1


def test_a_copy_is_proven_by_its_contents(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    written_down(plain, tmp_path)
    shutil.copytree(plain, tmp_path / "copy")
    found = RunIdentity(tmp_path, opened(tmp_path / "copy")).differences()
    assert found is not None
    assert (str(found), found.reread) == ("", COUNT + 2)
    other = RunIdentity(tmp_path, opened(inverted)).differences()
    assert other is not None
    assert len(other.changed) == COUNT + 2


def test_what_was_never_read_is_told_by_its_locator(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    written_down(plain, tmp_path, read=False)
    moved = RunIdentity(tmp_path, opened(inverted)).differences()
    assert moved is not None
    assert (str(moved), moved.unproven) == ("", COUNT + 2)
    assert "known by names and sizes only" in moved.notes()[0]
    replace_slyly(plain / "train/a/000.jpg", inverted / "train/a/000.jpg")
    in_place = RunIdentity(tmp_path, opened(plain)).differences()
    assert str(in_place) == "1 file changed since the checkpoint (train/a/000.jpg)"


def test_too_much_to_read_beforehand_is_compared_when_it_is_read(
    twins: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, inverted = twins
    written_down(plain, tmp_path)
    monkeypatch.setattr("flatout.training.data_identity._MOST_LOCAL_BYTES", 100)
    dataset = opened(inverted)
    found = RunIdentity(tmp_path, dataset).differences()
    assert found is not None
    assert (str(found), found.later) == ("", COUNT + 2)
    with pytest.raises(DataChanged):
        pixels_of(dataset.train)


def test_a_damaged_file_says_nothing(twins: tuple[Path, Path], tmp_path: Path) -> None:
    written_down(twins[0], tmp_path)
    whole = (tmp_path / "identity.npz").read_bytes()
    arrays = io.BytesIO()
    np.savez(arrays, **{"train.place": np.zeros(3, np.uint8)})
    signed = hashlib.sha256(arrays.getvalue()).digest() + arrays.getvalue()
    for damaged in (b"", whole[:-1], whole[:40] + b"!" + whole[41:], signed):
        (tmp_path / "identity.npz").write_bytes(damaged)
        identity_now = RunIdentity(tmp_path, opened(twins[0]))
        assert identity_now.differences() is None
        assert "by names and sizes" in identity_now.notes(True, None)[0]
