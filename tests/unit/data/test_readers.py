"""Where the bytes of samples come from."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from epochs import VIEW, expected, kept, loader_of
from small_datasets import jpeg, opened, sample_files, write_files, write_tar

from flatout.data.loading.prepare import BatchPlan
from flatout.data.source import readers
from flatout.data.source.readers import Extents, Source, read_source
from flatout.errors import StorageError
from flatout.machine.files import OpenFile

FILES = {**sample_files(12), **{f"val/{name}/0.jpg": jpeg(0) for name in "ab"}}


def recipe_of(path: Path) -> BatchPlan:
    return BatchPlan(opened(path).train, VIEW, seed=1, batch_size=4)


def tar_recipe(path: Path) -> BatchPlan:
    return recipe_of(write_tar(path, FILES))


def test_stretches_are_what_lies_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    extents = Extents(
        [memoryview(b"abcdef"), OpenFile(str(path))], np.array([0, 1, 1], np.int32), np.array([1, 0, 8]),
        np.array([2, 3, 2]),
    )  # fmt: skip
    assert [bytes(each) for each in extents] == [b"bc", b"012", b"89"]
    assert [bytes(each) for each in extents[1:]] == [b"012", b"89"]


def test_an_open_file_is_closed_with_its_last_reader(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123")
    file = OpenFile(str(tmp_path / "file"))
    fd, extents = file.fileno(), Extents([file], np.zeros(1, np.int32), np.zeros(1, np.int64), np.array([4]))
    del file
    assert bytes(extents[0]) == b"0123"
    del extents
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_files_of_a_folder_have_no_object_each_and_pickle(tmp_path: Path) -> None:
    recipe = recipe_of(write_files(tmp_path / "data", {**FILES, "train/a/\udcff\u00e9.jpg": jpeg(7)}))
    before = expected(recipe, 0)
    sources = recipe.split.locate(np.arange(len(recipe.split)))
    assert isinstance(sources, Extents)
    assert [os.path.relpath(str(path), tmp_path / "data") for path in sources] == list(recipe.split.names)
    assert expected(pickle.loads(pickle.dumps(recipe)), 0) == before


def test_files_of_a_mount_are_read_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open waits until eight of them are under way."""
    recipe = recipe_of(write_files(tmp_path / "data", FILES))
    before, met = expected(recipe, 0), threading.Barrier(8)

    def read_together(source: Source) -> object:
        met.wait(60)
        return read_source(source)

    monkeypatch.setattr(readers, "is_fuse_mount", lambda path: "fuse.rclone")
    mounted = recipe_of(tmp_path / "data")
    assert expected(mounted, 0) == before
    monkeypatch.setattr(readers, "read_source", read_together)
    assert len(mounted.split.locate(np.arange(8))) == 8


HANGS = """
import sys, threading, numpy as np
from flatout.data.source import readers
from flatout.data.source.readers import ObjectReader
from flatout.storage import open_store
asked = threading.Event()
readers.is_fuse_mount = lambda path: "fuse.rclone"
readers.read_source = lambda source: (asked.set(), threading.Event().wait())
mounted = ObjectReader(open_store(sys.argv[1]), ("a",), np.array([1]))
threading.Thread(target=mounted.locate, args=(np.array([0]),), daemon=True).start()
assert asked.wait(60)
"""


def test_a_mount_that_never_answers_keeps_no_process_from_ending(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", HANGS, str(tmp_path)], timeout=120, check=False).returncode == 0


def test_a_tar_that_is_moved_is_still_read_and_pickles(tmp_path: Path) -> None:
    recipe = tar_recipe(tmp_path / "data.tar")
    before = expected(recipe, 0)
    again = pickle.loads(pickle.dumps(recipe))
    (tmp_path / "data.tar").rename(tmp_path / "elsewhere.tar")
    assert expected(recipe, 0) == before
    with pytest.raises(StorageError, match=r"data\.tar"):
        expected(again, 0)


def test_a_tar_that_shrinks_is_no_bad_sample(tmp_path: Path) -> None:
    recipe = tar_recipe(tmp_path / "data.tar")
    os.truncate(tmp_path / "data.tar", 1024)
    with pytest.raises(StorageError, match=r"data\.tar: 'the sample at \d+' ended after 0 of"):
        expected(recipe, 0)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_tar_gives_the_batches_of_its_folder(tmp_path: Path, kind: str) -> None:
    folder = recipe_of(write_files(tmp_path / "folder", FILES))
    with loader_of(tar_recipe(tmp_path / "data.tar"), kind, 2) as loader:
        assert kept(loader.epoch(0)) == expected(folder, 0)
