"""The stage in front of a remote store, without one: a store that counts what it is asked for stands in."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_datasets import jpeg, opened, sample_files, write_files

from flatout.config.schema import DataConfig
from flatout.data.loading import staging
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.staging import StagedReader, is_remote, staged
from flatout.data.pixels.views import SHIPPED
from flatout.data.source import readers
from flatout.data.source.dataset import Split
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.data.source.readers import ObjectReader
from flatout.decisions.caching import StageChoice
from flatout.errors import ObjectMissing, StorageError, StoreUnreachable
from flatout.storage.local import FolderStore
from flatout.storage.protocol import Entry, Range

COUNT = 20


@dataclass
class RemoteStore:
    """A folder that behaves like a bucket."""

    folder: FolderStore
    url: str = "s3://bucket/data"
    asked: Counter[str] = field(default_factory=Counter)
    trouble: dict[str, StorageError] = field(default_factory=dict)
    gate: threading.Event | None = None

    def entries(self) -> Iterator[Entry]:
        return self.folder.entries()

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        self.asked.update(wanted.name for wanted in ranges)
        if self.gate is not None:
            self.gate.wait()
        return [
            self.trouble.get(wanted.name) or answer
            for wanted, answer in zip(ranges, self.folder.read_many(ranges), strict=True)
        ]

    def local_path(self, name: str) -> str | None:
        return None

    def close(self) -> None:
        pass


def remote(split: Split, root: Path) -> tuple[Split, RemoteStore]:
    """The same split with its reader on a bucket."""
    store = RemoteStore(FolderStore(str(root)))
    return replace(split, reader=replace(split.reader, store=store)), store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flatout"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data", sample_files(COUNT) | {f"val/{name}/0.jpg": jpeg(1) for name in "ab"})


ALL = np.arange(COUNT)


def stage(split: Split) -> tuple[Split, Any]:
    with_stage, log, choice = staged(split, "auto")
    assert choice.value == "disk"
    assert log is not None, choice.note
    return with_stage, log


def test_local_data_is_left_alone(root: Path) -> None:
    split = opened(root).train
    assert not is_remote(split)
    assert staged(split, "auto") == (split, None, StageChoice("off", "the data is on this machine", "auto", False))
    far, _ = remote(split, root)
    assert is_remote(far)
    assert staged(far, "off") == (far, None, StageChoice("off", "data.stage says so", "off", True))
    assert [staged(each, wanted)[2].note for each, wanted in ((split, "auto"), (far, "off"))] == [None, None]


def test_each_object_is_asked_for_once_also_after_reopening(root: Path) -> None:
    split, store = remote(opened(root).train, root)
    expected = opened(root).train.read(ALL)
    with_stage, log = stage(split)
    assert is_remote(with_stage)
    for ids in (ALL[:7], ALL[3:12], ALL, ALL[::-1]):
        assert with_stage.read(ids) == [expected[row] for row in ids]
    assert store.asked == Counter(split.names)
    log.close()
    again, log, choice = staged(split, "auto")
    assert (note := choice.note) is not None
    assert f"{COUNT} of {COUNT} samples are there already" in note
    assert again.read(ALL) == expected
    assert store.asked == Counter(split.names)
    log.close()


def test_the_note_says_where_and_how_much(root: Path, cache: Path) -> None:
    split, _ = remote(opened(root).train, root)
    _, log, choice = staged(split, "auto")
    assert log is not None
    assert (note := choice.note) is not None
    assert note.startswith(f"stage: {int(split.lengths.sum()) / 1000:.1f} kB to {cache}/staged-")
    assert note.endswith("filled during the first epoch")
    log.close()


def test_a_missing_object_is_not_kept_as_missing(root: Path) -> None:
    split, store = remote(opened(root).train, root)
    with_stage, log = stage(split)
    store.trouble[split.names[2]] = ObjectMissing("gone")
    answers = with_stage.read(ALL[:4])
    assert [isinstance(answer, ObjectMissing) for answer in answers] == [False, False, True, False]
    store.trouble.clear()
    assert with_stage.read(ALL[:4]) == opened(root).train.read(ALL[:4])
    assert store.asked[split.names[2]] == 2
    log.close()


def test_damage_on_the_local_disk_is_fetched_again(root: Path, cache: Path) -> None:
    split, store = remote(opened(root).train, root)
    with_stage, log = stage(split)
    with_stage.read(ALL)
    log.close()
    (folder,) = cache.glob("staged-*")
    data = bytearray((folder / "data").read_bytes())
    for at in range(0, len(data), 3000):
        data[at] ^= 0xFF
    (folder / "data").write_bytes(data)
    with_stage, log = stage(split)
    for _ in range(2):
        assert with_stage.read(ALL) == opened(root).train.read(ALL)
    assert COUNT < store.asked.total() < 2 * COUNT
    log.close()


def test_a_stage_in_use_is_done_without(root: Path) -> None:
    split, _ = remote(opened(root).train, root)
    _, log = stage(split)
    second, none, choice = staged(split, "auto")
    assert none is None
    assert second is split
    assert (note := choice.note) is not None
    assert "being filled by another run; this one reads from the store" in note
    log.close()


def test_a_cache_folder_that_cannot_be_written_is_done_without(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    split, _ = remote(opened(root).train, root)
    same, log, choice = staged(split, "auto")
    assert (same, log) == (split, None)
    assert (note := choice.note) is not None
    assert note.startswith("stage: off, ")


def test_what_does_not_fit_is_streamed_unless_it_is_there_already(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, _ = remote(opened(root).train, root)
    needed = int(split.lengths.sum())
    monkeypatch.setattr(staging, "disk_budget_bytes", lambda folder: needed - 1)
    same, log, choice = staged(split, "auto")
    assert (same, log) == (split, None)
    assert (note := choice.note) is not None
    assert "do not fit the" in note
    monkeypatch.setattr(staging, "disk_budget_bytes", lambda folder: needed)
    with_stage, log = stage(split)
    with_stage.read(ALL)
    log.close()
    monkeypatch.setattr(staging, "disk_budget_bytes", lambda folder: 0)  # the stage itself has taken the room
    _, log = stage(split)
    assert len(log) == COUNT
    log.close()


def test_a_disk_that_fills_up_changes_nothing_but_the_requests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split, store = remote(opened(root).train, root)
    with_stage, log = stage(split)
    with_stage.read(ALL[:8])
    log.full = "the disk: No space left on device"
    for _ in range(2):
        assert with_stage.read(ALL) == opened(root).train.read(ALL)
    assert store.asked == Counter([*split.names[:8], *split.names[8:], *split.names[8:]])
    log.close()


@pytest.mark.parametrize("mode", ["original", "resized", "decoded"])
def test_packs_in_a_bucket_are_not_mixed_up_with_the_files(root: Path, tmp_path: Path, mode: str) -> None:
    """The same fingerprint, but other bytes: a stage filled from the files must not serve the pack."""
    files, _ = remote(opened(root).train, root)
    with_stage, log = stage(files)
    with_stage.read(ALL)
    log.close()
    list(write_pack(opened(root), tmp_path / "pack", PackOptions(mode, short_side=8)))
    local = opened(tmp_path / "pack").train
    pack, store = remote(local, tmp_path / "pack")
    with_stage, log = stage(pack)
    for _ in range(2):
        assert with_stage.read(ALL) == [bytes(data) for data in local.read(ALL)]
        assert np.array_equal(with_stage.shapes(ALL), local.shapes(ALL)) or mode != "decoded"
    assert store.asked.total() == COUNT
    log.close()


def test_a_decoded_pack_needs_the_room_of_its_pixels(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(write_pack(opened(root), tmp_path / "pack", PackOptions("decoded")))
    pack, _ = remote(opened(tmp_path / "pack").train, tmp_path / "pack")
    monkeypatch.setattr(staging, "disk_budget_bytes", lambda folder: int(pack.lengths.sum()))
    assert staged(pack, "auto")[1] is None


def test_files_added_outside_a_limit_do_not_shift_what_is_staged(root: Path) -> None:
    limited, _ = remote(opened(root, samples_per_class=3).train, root)
    with_stage, log = stage(limited)
    with_stage.read(np.arange(6))
    log.close()
    write_files(root, {"train/a/zzz.jpg": jpeg(77)})
    local = opened(root, samples_per_class=3).train
    assert local.names == limited.names
    with_stage, log = stage(remote(local, root)[0])
    assert with_stage.read(np.arange(6)) == local.read(np.arange(6))
    log.close()


def test_a_mounted_bucket_is_staged_from_its_paths(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = opened(root).train.read(ALL)
    split = opened(root).train
    monkeypatch.setattr(readers, "is_fuse_mount", lambda path: "fuse.rclone")
    assert is_remote(split)
    with_stage, log = stage(split)
    assert with_stage.read(ALL) == expected
    for name in split.names:
        (root / name).unlink()
    assert with_stage.read(ALL) == expected
    log.close()


def test_threads_that_need_the_same_sample_ask_once(root: Path) -> None:
    split, store = remote(opened(root).train, root)
    with_stage, log = stage(split)
    expected = opened(root).train.read(ALL)
    store.gate = threading.Event()
    wrong: list[object] = []

    def read(seed: int) -> None:
        ids = np.random.default_rng(seed).permutation(COUNT)[:12]
        if with_stage.read(ids) != [expected[row] for row in ids]:
            wrong.append(ids)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    store.gate.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert max(store.asked.values()) == 1
    log.close()


def test_a_thread_that_fails_does_not_leave_the_others_waiting(root: Path) -> None:
    split, store = remote(opened(root).train, root)
    store.trouble = {split.names[5]: StoreUnreachable("no answer")}
    with_stage, log = stage(split)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(with_stage.read(ALL))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        assert [row for row, each in enumerate(answer) if isinstance(each, StorageError)] == [5]

    class Broken:
        def locate(self, rows: object) -> list[Any]:
            raise ZeroDivisionError

        def shapes(self, rows: object) -> None:
            return None

    reader = StagedReader(Broken(), log)
    for _ in range(2):  # the claim of the first is gone
        with pytest.raises(ZeroDivisionError):
            reader.locate(np.array([5]))
    log.close()


def test_a_loader_gives_its_stage_back(root: Path, cache: Path) -> None:
    split, store = remote(opened(root).train, root)
    assert isinstance(split.reader, ObjectReader)
    recipe = BatchPlan(split, SHIPPED["train-64"], seed=0, batch_size=4)
    for _ in range(2):
        with open_loader(recipe, DataConfig(cache="off", worker_kind="thread"), workers=2) as loader:
            assert loader.notes[0].startswith("stage: ")
            assert "off" not in loader.notes[0]
            assert len(list(loader.epoch(0))) == 5
    assert store.asked == Counter(split.names)
