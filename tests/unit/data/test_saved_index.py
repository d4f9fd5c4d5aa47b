"""The saved index of a folder: used while nothing changed, and never afterwards."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import jpeg, opened, write_files

from flatout.data.source.array_file import pack_names, unpack_names
from flatout.data.source.dataset import Dataset
from flatout.data.source.saved_index import load_index
from flatout.errors import DataError
from flatout.storage.local import FolderStore
from flatout.storage.protocol import Entry

SOME_TIME_AGO_NS = 1_700_000_000 * 10**9


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every folder is large enough, and the user's own cache is out of reach."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("flatout.data.source.dataset.LEAST_FILES", 1)
    return tmp_path / "cache" / "flatout" / "index"


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one whenever a folder is listed."""
    listed: list[str] = []
    real = FolderStore.entries

    def entries(store: FolderStore) -> Iterator[Entry]:
        listed.append(store.root)
        return real(store)

    monkeypatch.setattr(FolderStore, "entries", entries)
    return listed


def aged(root: Path) -> Path:
    """As if nothing had been changed for a long while."""
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.utime(path, ns=(SOME_TIME_AGO_NS, SOME_TIME_AGO_NS))
    return root


def files(outer: str = "") -> dict[str, bytes]:
    names = [f"train/{'ab'[number % 2]}/{number}.jpg" for number in range(6)] + ["val/a/0.jpg", "val/b/1.jpg"]
    return {outer + name: jpeg(number) for number, name in enumerate(names)}


def same(left: Dataset, right: Dataset) -> bool:
    assert left.val is not None
    assert right.val is not None
    pairs = ((left.train, right.train), (left.val, right.val))
    return (
        left.fingerprint == right.fingerprint
        and left.classes == right.classes
        and all(one.read(np.arange(len(one))) == two.read(np.arange(len(two))) for one, two in pairs)
    )


@pytest.mark.parametrize("outer", ["", "archive/v1/"])
def test_a_second_open_does_not_list(tmp_path: Path, listings: list[str], outer: str) -> None:
    root = aged(write_files(tmp_path / "data", files(outer)))
    first = opened(root)
    assert len(listings) == 1
    again = opened(root)
    assert len(listings) == 1
    assert same(first, again)


def test_limits_and_holding_out_apply_to_a_saved_index(tmp_path: Path, listings: list[str]) -> None:
    root = aged(write_files(tmp_path / "data", {f"{'abc'[n % 3]}/{n:02d}.jpg": jpeg(n) for n in range(60)}))
    limits = {"classes": ["b", "c"], "samples_per_class": 15}
    first, again = opened(root, **limits), opened(root, **limits)
    assert len(listings) == 1
    assert same(first, again)


def test_odd_names_are_the_same_from_the_index(tmp_path: Path, listings: list[str]) -> None:
    odd = {f"train/a/{name}.jpg": jpeg(1) for name in ("new\nline", "ü", "\udcff", "a" * 251)}
    root = aged(write_files(tmp_path / "data", files() | odd))
    first, again = opened(root), opened(root)
    assert len(listings) == 1
    assert same(first, again)


def annotate(root: Path, first_class: str = "a") -> None:
    (root / "val" / "val_annotations.txt").write_text(f"0.jpg\t{first_class}\n1.jpg\tb\n2.jpg\ta\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "add": lambda root: (root / "train/a/new.jpg").write_bytes(jpeg(1)),
    "remove": lambda root: (root / "train/a/0.jpg").unlink(),
    "rename": lambda root: (root / "train/a/0.jpg").rename(root / "train/a/00.jpg"),
    "move to another class": lambda root: (root / "train/a/0.jpg").rename(root / "train/b/0.jpg"),
    "replace": lambda root: os.replace(write_files(root.parent, {"x": jpeg(77)}) / "x", root / "train/a/0.jpg"),
    "new class": lambda root: write_files(root, {"train/c/0.jpg": jpeg(1), "val/c/0.jpg": jpeg(2)}),
    "rename a class": lambda root: [(root / split / "a").rename(root / split / "A") for split in ("train", "val")],
    "into an empty folder": lambda root: write_files(root, {"train/a/later/1.jpg": jpeg(1)}),
    "into a deeper empty folder": lambda root: write_files(root, {"train/a/later/still/1.jpg": jpeg(1)}),
    "hide": lambda root: (root / "train/a/0.jpg").rename(root / "train/a/.0.jpg"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_samples_is_noticed(tmp_path: Path, listings: list[str], change: str) -> None:
    root = write_files(tmp_path / "data", files())
    (root / "train/a/later/still").mkdir(parents=True)
    opened(aged(root))
    CHANGES[change](root)
    changed = opened(root)
    assert len(listings) == 2
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg") if not path.name.startswith("."))
    assert changed.val is not None
    assert sorted([*changed.train.names, *changed.val.names]) == found


def test_a_val_folder_that_is_filled_later_is_noticed(tmp_path: Path, listings: list[str]) -> None:
    root = write_files(tmp_path / "data", {name: data for name, data in files().items() if name.startswith("train")})
    (root / "val" / "a").mkdir(parents=True)
    opened(aged(root))
    write_files(root, {"val/a/0.jpg": jpeg(0)})
    with pytest.raises(DataError, match="'b' is only in train"):
        opened(root)
    write_files(root, {"val/b/0.jpg": jpeg(0)})
    val = opened(root).val
    assert val is not None
    assert val.names == ("val/a/0.jpg", "val/b/0.jpg")


def test_a_folder_beside_the_outer_one_is_noticed(tmp_path: Path, listings: list[str]) -> None:
    train = {name: data for name, data in files("outer/").items() if "train" in name}
    root = aged(write_files(tmp_path / "data", train))
    opened(root)
    write_files(root, {name: data for name, data in files("outer/").items() if "val" in name})
    val = opened(root).val
    assert val is not None
    assert val.names == ("val/a/0.jpg", "val/b/1.jpg")


def test_an_edited_annotation_file_is_noticed(tmp_path: Path, listings: list[str]) -> None:
    names = [f"train/{name}/images/{number}.jpg" for name in "ab" for number in range(2)]
    root = write_files(
        tmp_path / "data", {name: jpeg(1) for name in [*names, *(f"val/images/{n}.jpg" for n in range(3))]}
    )
    annotate(root)
    first = opened(aged(root))
    assert same(first, opened(root))
    assert len(listings) == 1
    annotate(root, "b")  # in place: no folder's time changes
    val = opened(root).val
    assert len(listings) == 2
    assert val is not None
    assert dict(zip(val.names, val.labels.tolist(), strict=True))["val/images/0.jpg"] == 1


def test_a_class_folder_that_is_emptied_is_refused(tmp_path: Path) -> None:
    root = write_files(tmp_path / "data", files())
    opened(aged(root))
    for path in (root / "train" / "a").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"different classes|no samples"):
        opened(root)


def test_an_image_written_over_in_place_is_read_anew(tmp_path: Path, listings: list[str]) -> None:
    root = aged(write_files(tmp_path / "data", files()))
    opened(root)
    (root / "train/a/0.jpg").write_bytes(b"other")
    again = opened(root)
    assert len(listings) == 1
    assert again.train.read(np.array([0])) == [b"other"]
    assert again.train.lengths[0] == 5  # the index spares the listing, not the look at every file


def test_a_change_just_before_or_during_the_listing_is_not_saved(
    tmp_path: Path, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = aged(write_files(tmp_path / "data", files()))
    (root / "train/a/new.jpg").write_bytes(jpeg(1))
    opened(root)
    opened(root)
    assert len(listings) == 2
    aged(root)
    real = FolderStore.entries

    def slowly(store: FolderStore) -> Iterator[Entry]:
        """Somebody adds a file to a folder that was listed already; the listing goes on for an hour."""
        yield from real(store)
        (root / "train/a/unseen.jpg").write_bytes(jpeg(1))
        os.utime(root / "train/a", ns=(SOME_TIME_AGO_NS + 11 * 10**9,) * 2)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "entries", slowly)
        patched.setattr(time, "time_ns", lambda: SOME_TIME_AGO_NS + 10 * 10**9)
        assert "train/a/unseen.jpg" not in opened(root).train.names
    assert "train/a/unseen.jpg" in opened(root).train.names


def test_small_folders_are_listed_every_time(
    tmp_path: Path, listings: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.data.source.dataset.LEAST_FILES", 9)
    root = aged(write_files(tmp_path / "data", files()))  # 8 files
    opened(root)
    opened(root)
    assert len(listings) == 2
    assert not cache.exists()
    aged(write_files(root, {"train/a/9.jpg": jpeg(9)}))
    opened(root)
    opened(root)
    assert len(listings) == 3


@pytest.mark.parametrize(("kind", "lists"), [("fuse.rclone", 2), ("fuse.mountpoint-s3", 2), ("nfs4", 1), (None, 1)])
def test_mounted_buckets_are_listed_every_time(
    tmp_path: Path, listings: list[str], monkeypatch: pytest.MonkeyPatch, kind: str | None, lists: int
) -> None:
    # their folders keep one time of change for ever, whatever is uploaded
    monkeypatch.setattr("flatout.data.source.dataset.is_fuse_mount", lambda path: kind)
    root = aged(write_files(tmp_path / "data", files()))
    opened(root)
    opened(root)
    assert len(listings) == lists


def test_one_index_serves_every_way_to_write_the_path(
    tmp_path: Path, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = aged(write_files(tmp_path / "data", files()))
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    first = opened(Path("data"))
    for path in (root, Path("./data/../data"), tmp_path / "link"):
        assert same(first, opened(path))
    assert len(listings) == 1


def damaged_versions(whole: bytes) -> Iterator[bytes]:
    yield b""
    yield b"junk"
    yield b"PK\x03\x04" + bytes(60)
    yield from (whole[:cut] for cut in range(1, len(whole), len(whole) // 40))
    for at in range(0, len(whole), len(whole) // 150):
        yield whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]


def test_a_damaged_index_is_made_again(tmp_path: Path, cache: Path) -> None:
    root = aged(write_files(tmp_path / "data", files()))
    expected = opened(root)
    (path,) = cache.iterdir()
    for version in damaged_versions(path.read_bytes()):
        path.write_bytes(version)
        assert same(opened(root), expected)
    assert load_index(str(root)) is not None
    assert [each.suffix for each in cache.iterdir()] == [".npz"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    root = aged(write_files(tmp_path / "data", files()))
    assert same(opened(root), opened(root))


@given(st.lists(st.binary(max_size=50).filter(lambda name: b"\0" not in name)))
def test_names_survive_as_bytes(names: list[bytes]) -> None:
    decoded = [os.fsdecode(name) for name in names]
    assert unpack_names(pack_names(decoded)) == decoded
