"""Files that change at the worst moment: nothing that was kept meanwhile is given to the wrong bytes later."""

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_datasets import opened, write_tar
from test_identity import COUNT, loader_of, pixels_of

from flatout.data.source import pack as pack_module
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.errors import DataChanged, DataError, StorageError, TooManyQuarantined
from twins import make_twins, twin_files


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    return make_twins(tmp_path, COUNT)


def exchange(left: Path, right: Path) -> None:
    """Every file of one dataset against its twin, by renaming: inode, size and times of each go with it."""
    for path in sorted(left.rglob("*.jpg")):
        other, aside = right / path.relative_to(left), path.with_suffix(".aside")
        os.rename(path, aside)
        os.rename(other, path)
        os.rename(aside, other)


@pytest.mark.parametrize("switched", ["link", "folder", "tar"])
def test_a_dataset_switched_after_the_listing_and_back_after_the_reading(
    twins: tuple[Path, Path], tmp_path: Path, switched: str
) -> None:
    """Neither times nor numbers of any file change by it: what was listed is what must be read."""
    plain, inverted = twins
    current, other = tmp_path / "current", tmp_path / "other"
    expected = pixels_of(opened(Path(shutil.copytree(plain, tmp_path / "copy"))).train)
    if switched == "tar":
        current, other = (write_tar(tmp_path / f"{n}.tar", files) for n, files in enumerate(twin_files(COUNT)))
    elif switched == "link":
        current.symlink_to(plain)
        other.symlink_to(inverted)
    else:
        current, other = plain, inverted

    def switch() -> None:
        os.rename(current, tmp_path / "aside")
        os.rename(other, current)
        os.rename(tmp_path / "aside", other)

    listed = opened(current)
    switch()
    assert pixels_of(listed.train, cache="disk") == expected
    listed.train.origins.remember()
    switch()
    assert pixels_of(opened(current).train, cache="disk") == expected
    switch()
    assert pixels_of(opened(current).train, cache="disk") != expected


def test_a_worker_process_reads_the_folder_that_was_listed_or_none(twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    listed = opened(plain)
    there = pickle.loads(pickle.dumps(listed.train.reader))  # as a pool of processes does it
    os.rename(plain, plain.with_name("aside"))
    os.rename(inverted, plain)
    with pytest.raises(StorageError, match="was replaced by another one since it was listed"):
        there.locate(np.arange(2))


@pytest.mark.parametrize("kept", [{"cache": "disk"}, {"cache": "off"}])
def test_files_exchanged_after_the_listing_and_back_after_the_reading(
    twins: tuple[Path, Path], kept: dict[str, str]
) -> None:
    plain, inverted = twins
    expected = pixels_of(opened(Path(shutil.copytree(plain, plain.with_name("copy")))).train)
    listed = opened(plain)
    exchange(plain, inverted)
    other = pixels_of(listed.train, **kept)
    listed.train.origins.remember()
    exchange(plain, inverted)
    assert other != expected
    again = opened(plain)
    assert pixels_of(again.train, **kept) == expected


def test_a_link_that_leads_elsewhere_is_another_file(twins: tuple[Path, Path], tmp_path: Path) -> None:
    """A folder of links, as made to choose from a larger dataset."""
    plain, inverted = twins
    links = tmp_path / "links"
    for path in plain.rglob("*.jpg"):
        link = links / path.relative_to(plain)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    expected = pixels_of(opened(inverted).train)
    assert pixels_of(opened(links).train, cache="disk") != expected
    for link in links.rglob("*.jpg"):
        target = inverted / link.relative_to(links)
        link.unlink()
        link.symlink_to(target)
    assert pixels_of(opened(links).train, cache="disk") == expected


def test_a_folder_that_is_a_link_and_leads_elsewhere(twins: tuple[Path, Path], tmp_path: Path) -> None:
    plain, inverted = twins
    current = tmp_path / "current"
    current.symlink_to(plain)
    expected = pixels_of(opened(inverted).train)
    under_way, before = opened(current).train, pixels_of(opened(current).train, cache="disk")
    current.unlink()
    current.symlink_to(inverted)
    assert pixels_of(under_way) == before, "a run goes on with what it was opened on"
    assert pixels_of(opened(current).train, cache="disk") == expected


def test_a_file_exchanged_for_one_of_another_length_in_mid_run(twins: tuple[Path, Path]) -> None:
    plain, _ = twins
    loader = loader_of(opened(plain).train)
    list(loader.epoch(0))
    path = plain / "train/a/000.jpg"
    path.write_bytes(path.read_bytes() + bytes(100))
    with pytest.raises(DataChanged, match=r"train/a/000\.jpg"):
        list(loader.epoch(1))
    loader.close()


def test_a_shard_exchanged_after_the_pack_was_opened(
    twins: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoded pixels are compared with the index once for each state of a file: of the file that was read."""
    monkeypatch.setattr(pack_module, "_SETTLED_NANOSECONDS", 0)
    packs = [tmp_path / name for name in ("pack", "other")]
    for pack, twin in zip(packs, twins, strict=True):
        list(write_pack(opened(twin), pack, PackOptions("decoded")))
    expected = pixels_of(opened(packs[0]).train)
    under_way = opened(packs[0])
    there = pickle.loads(pickle.dumps(under_way.train.reader))  # as a pool of processes does it
    exchanged = packs[0] / "train-00000.data"
    os.rename(exchanged, tmp_path / "aside")
    os.rename(packs[1] / "train-00000.data", exchanged)
    assert pixels_of(under_way.train) == expected
    with pytest.raises(DataError, match="was replaced since the pack was opened"):
        there.locate(np.arange(2))
    with pytest.raises(TooManyQuarantined):
        pixels_of(opened(packs[0]).train)
