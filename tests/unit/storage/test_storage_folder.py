import os
import pickle
from pathlib import Path

import pytest

from flatout.errors import AccessDenied, ObjectMissing, StorageError
from flatout.storage import Entry, Range
from flatout.storage.local import FolderStore


def write(path: Path, data: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def names(root: Path) -> list[str]:
    return sorted(entry.name for entry in FolderStore(str(root)).entries())


def test_lists_regular_files_with_their_sizes(tmp_path: Path) -> None:
    write(tmp_path / "a/b/c.jpg", b"123")
    write(tmp_path / "top.txt", b"")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert set(FolderStore(str(tmp_path)).entries()) == {Entry("a/b/c.jpg", 3), Entry("top.txt", 0)}


def test_what_is_read_whole_has_a_limit(tmp_path: Path) -> None:
    write(tmp_path / "train.index")
    os.truncate(tmp_path / "train.index", 2**42)  # sparse
    whole, part = FolderStore(str(tmp_path)).read_many([Range("train.index"), Range("train.index", 0, 1)])
    assert "for what is read whole" in str(whole)
    assert part == b"x"


def test_odd_names_survive(tmp_path: Path) -> None:
    odd = [b"new\nline", b"sp ace", "é".encode(), "e\u0301".encode(), b"bad\xff\xfe", b"a" * 255, b"back\\slash"]
    for name in odd:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(name)
    store = FolderStore(str(tmp_path))
    found = {os.fsencode(entry.name) for entry in store.entries()}
    assert found == set(odd)
    assert store.read_many([Range(os.fsdecode(name)) for name in odd]) == odd


def test_each_file_once_despite_loops(tmp_path: Path) -> None:
    write(tmp_path / "a/1.jpg")
    write(tmp_path / "b/2.jpg")
    (tmp_path / "a/up").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to(".")
    (tmp_path / "0-first-in-order").symlink_to("b")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("missing")
    assert names(tmp_path) == ["a/1.jpg", "b/2.jpg"]


def test_links_out_of_the_folder_are_followed_once(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere/deep/1.jpg")
    write(tmp_path / "elsewhere/file.jpg")
    root = tmp_path / "root"
    root.mkdir()
    (root / "z").symlink_to(tmp_path / "elsewhere")
    (root / "y").symlink_to(tmp_path / "elsewhere")
    (root / "single.jpg").symlink_to(tmp_path / "elsewhere/file.jpg")
    assert names(root) == ["single.jpg", "y/deep/1.jpg", "y/file.jpg"]


def test_a_link_to_the_parent_does_not_list_the_folder_twice(tmp_path: Path) -> None:
    write(tmp_path / "root/1.jpg")
    write(tmp_path / "beside.jpg")
    (tmp_path / "root/up").symlink_to("..")
    assert names(tmp_path / "root") == ["1.jpg", "up/beside.jpg"]


@pytest.mark.parametrize(("start", "length"), [(0, None), (3, None), (10, None), (0, 10), (2, 5), (4, 0)])
def test_ranges(tmp_path: Path, start: int, length: int | None) -> None:
    write(tmp_path / "f", b"0123456789")
    expected = b"0123456789"[start : None if length is None else start + length]
    assert FolderStore(str(tmp_path)).read_many([Range("f", start, length)]) == [expected]


@pytest.mark.parametrize(("start", "length"), [(0, 11), (11, None), (9, 2), (-1, 3), (5, -1)])
def test_ranges_outside_the_file(tmp_path: Path, start: int, length: int | None) -> None:
    write(tmp_path / "f", b"0123456789")
    (answer,) = FolderStore(str(tmp_path)).read_many([Range("f", start, length)])
    assert isinstance(answer, StorageError)
    assert "has 10 bytes" in str(answer)


def test_one_bad_name_does_not_spoil_the_others(tmp_path: Path) -> None:
    write(tmp_path / "good", b"1")
    (tmp_path / "folder").mkdir()
    store = FolderStore(str(tmp_path))
    wanted = ["none", "folder", "good/under-a-file", "nul\0", "../x", "/etc/hostname", "a/../../x", "good"]
    *bad, good = store.read_many([Range(name) for name in wanted])
    assert good == b"1"
    assert all(isinstance(answer, StorageError) for answer in bad)
    assert all(isinstance(answer, ObjectMissing) for answer in bad[:1])
    assert "leads out" in str(bad[4])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path / "secret")
    (tmp_path / "secret").chmod(0)
    (answer,) = FolderStore(str(tmp_path)).read_many([Range("secret")])
    assert isinstance(answer, AccessDenied)


def test_a_file_that_shrinks_while_it_is_read_is_not_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "f", b"0123456789")
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: real_pread(file, min(count, max(0, 6 - at)), at))
    (answer,) = FolderStore(str(tmp_path)).read_many([Range("f")])
    assert isinstance(answer, StorageError)
    assert "ended after 6 of 10 bytes" in str(answer)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "f", b"0123456789")
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, at: real_pread(file, min(count, 3), at))
    assert FolderStore(str(tmp_path)).read_many([Range("f", 1)]) == [b"123456789"]


def test_a_root_that_vanished(tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing):
        list(FolderStore(str(tmp_path / "gone")).entries())


def test_path_and_pickle(tmp_path: Path) -> None:
    store = pickle.loads(pickle.dumps(FolderStore(str(tmp_path))))
    assert store.url == str(tmp_path)
    assert store.local_path("a/b") == str(tmp_path / "a/b")
    store.close()
