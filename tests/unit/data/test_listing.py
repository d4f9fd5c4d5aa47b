"""The compiled listing of a folder is that of Python, and what it says of every file is what the file system says."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import jpeg, opened, write_files

from flatout.data.pixels.decode import native
from flatout.data.source import listing
from flatout.data.source.array_file import pack_names, unpack_names
from flatout.data.source.formats.arrangement import Listing
from flatout.data.source.listing import ObjectTable, as_table, list_store
from flatout.data.source.readers import pack_paths
from flatout.errors import AccessDenied, DataError, ObjectMissing, StorageError
from flatout.storage import local
from flatout.storage.local import FolderStore
from flatout.storage.locators import file_locator
from flatout.storage.protocol import Entry

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled listing with Python's")
ODD = ("new\nline", "sp ace", "ü", "u\u0308", "\udcff\udcfe", "a" * 250, "日本", "back\\slash", ".hidden")


def odd_folder(root: Path) -> Path:
    """Odd names, deep and empty folders, and every kind of link."""
    files = {f"train/{label}/{name}.jpg": jpeg(len(name)) for label in ("a", "\udcff", "c/deep") for name in ODD}
    write_files(root, files | {"top.txt": b"", "elsewhere.txt": b"1234567"})
    (root / "train/empty/still").mkdir(parents=True)
    os.mkfifo(root / "train/pipe")
    (root / "train/file.jpg").symlink_to("../elsewhere.txt")
    (root / "train/z").symlink_to("a")
    (root / "train/loop").symlink_to("..")
    (root / "train/round").symlink_to("round")
    (root / "train/nowhere").symlink_to("missing")
    outside = write_files(root.parent / "outside", {"deep/1.jpg": b"1", "2.jpg": b"22"})
    (root / "linked").symlink_to(outside)
    (root / "again").symlink_to(outside)
    return root


def as_dictionary(found: ObjectTable) -> dict[str, tuple[int, bytes]]:
    told = zip(found.sizes.tolist(), (each.tobytes() for each in found.locators), strict=True)
    return dict(zip(found.names, told, strict=True))


@pytest.mark.parametrize("compiled", [True, False])
def test_every_file_once_with_its_size_and_locator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    root = odd_folder(tmp_path / "root")
    monkeypatch.setattr(listing, "native", native if compiled else None)
    found = as_dictionary(list_store(FolderStore(str(root))))
    expected = {os.fsdecode(os.path.relpath(path, root)) for path in root.rglob("*") if path.is_file()}
    expected = {name for name in expected if not name.startswith(("train/z/", "train/loop/", "linked/"))}
    expected |= {"again/deep/1.jpg", "again/2.jpg"}  # the first of two links to one folder
    assert set(found) == expected
    for name, (size, locator) in found.items():
        status = os.stat(root / name)
        assert size == status.st_size
        assert locator == file_locator(status)


def test_compiled_and_not_the_entries_are_the_same_in_the_same_order(tmp_path: Path) -> None:
    store = FolderStore(str(odd_folder(tmp_path / "root")))
    entries = {entry.name: (entry.bytes, entry.locator) for entry in store.entries()}
    found = list_store(store)
    assert as_dictionary(found) == entries
    assert found.names == list(entries)
    for folder, names in found.folders.items():
        assert names == sorted(names, key=os.fsencode)
        assert {os.path.dirname(name) for name in names} == {folder.removesuffix("/")}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("threads", [True, False])
def test_thousands_of_files_in_folders_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, threads: bool
) -> None:
    monkeypatch.setattr(listing, "native", native if compiled else None)
    monkeypatch.setattr(local, "_SMALL_FOLDERS_BYTES", 0 if threads else 2**40)
    sizes = {f"a/{number * 7919 % 5000:05d}.jpg": number % 3 for number in range(5000)} | {"b/1.jpg": 1, "c/2.jpg": 2}
    found = list_store(FolderStore(str(write_files(tmp_path, {name: bytes(size) for name, size in sizes.items()}))))
    assert found.names == sorted(sizes)
    assert found.sizes.tolist() == [sizes[name] for name in found.names]


@contextmanager
def meanwhile(change: Callable[[int], None]) -> Iterator[None]:
    """Another thread that changes something over and over."""
    done = threading.Event()

    def work() -> None:
        number = 0
        while not done.is_set():
            change(number := number + 1)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("compiled", [True, False])
def test_a_folder_that_changes_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Files that stay are found once each, those that come and go once or not at all, and with a size they had."""
    monkeypatch.setattr(listing, "native", native if compiled else None)
    stay = {f"a/{number:03d}.jpg": bytes(number) for number in range(300)}
    root = write_files(tmp_path / "root", stay)

    def come_and_go(number: int) -> None:
        (root / f"a/{number % 300:03d}-{number}.jpg").write_bytes(b"12345")
        (root / f"a/{(number - 20) % 300:03d}-{number - 20}.jpg").unlink(missing_ok=True)

    with meanwhile(come_and_go):
        for _ in range(20):
            found = list_store(FolderStore(str(root)))
            sizes = dict(zip(found.names, found.sizes.tolist(), strict=True))
            assert len(sizes) == len(found.names) == len(found.locators)
            assert {name: sizes.pop(name) for name in stay} == {name: len(data) for name, data in stay.items()}
            assert set(sizes.values()) <= {0, 5}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("folders", [2, 40])
def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, folders: int
) -> None:
    root = write_files(tmp_path, {f"train/{number:03d}/1.jpg": b"1" for number in range(folders)})
    real, scan = native.list_folder, os.scandir

    def refuse(path: str) -> str:
        if path.rstrip("/").endswith("train/001"):
            raise PermissionError(13, "Permission denied", path)
        return path

    class Refusing:
        @staticmethod
        def list_folder(path: str, prefix: str) -> object:
            return real(refuse(path), prefix)

    with monkeypatch.context() as patched:
        patched.setattr(listing, "native", Refusing if compiled else None)
        patched.setattr(local.os, "scandir", lambda path: scan(refuse(path)))
        with pytest.raises(AccessDenied, match=r"train/001.* may not be read by this user"):
            list_store(FolderStore(str(root)))


names_of_objects = st.lists(
    st.lists(st.sampled_from(["a", "b", ".h", "ü", "K.CSV", "1.jpg", "x.json", "."]), min_size=1, max_size=3).map(
        "/".join
    ),
    unique=True,
)


@given(names_of_objects, st.randoms(use_true_random=False))
def test_rows_of_any_names_are_theirs(names: list[str], dice: object) -> None:
    """Whole folders, parts of them, and what lies between others in the listing."""
    table = as_table(Entry(name, number) for number, name in enumerate(names))
    assert sorted(table.names) == sorted(names)
    for asked in (names, sorted(names), dice.sample(names, len(names) // 2), table.names, table.names[1:]):
        assert [table.names[row] for row in table.rows_of(asked).tolist()] == list(asked)
        assert table.sizes[table.rows_of(asked)].tolist() == [names.index(name) for name in asked]
    with pytest.raises(KeyError):
        table.rows_of([*names, "absent/1.jpg"])


@given(names_of_objects)
def test_what_is_hidden_and_what_tells_the_layout(names: list[str]) -> None:
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    found = Listing(FolderStore("."), as_table(Entry(name, 0) for name in names), ".")
    assert sorted(found.visible()) == sorted(shown)
    assert sorted(found.telling) == sorted(name for name in shown if name.lower().endswith((".csv", ".json")))


def test_many_folders_at_once_and_one_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"train/{number:03d}/{number}.jpg": bytes(number) for number in range(200)}
    store = FolderStore(str(write_files(tmp_path / "data", files)))
    assert {name: size for name, (size, _) in as_dictionary(list_store(store)).items()} == {
        name: len(data) for name, data in files.items()
    }
    real = listing.native.list_folder

    class Vanishing:
        @staticmethod
        def list_folder(path: str, prefix: str) -> object:
            return real(path + "-gone" if prefix == "train/117/" else path, prefix)

    monkeypatch.setattr(listing, "native", Vanishing)
    with pytest.raises(ObjectMissing, match=r"train/117/.* is not a file here any more"):
        list_store(store)
    with pytest.raises(StorageError, match="is not a file here any more"):
        list_store(FolderStore(str(tmp_path / "nowhere")))


def test_the_compiled_call_refuses_what_is_no_path() -> None:
    assert native is not None
    with pytest.raises(ValueError, match="null"):
        native.list_folder("a\0b", "")
    with pytest.raises(TypeError):
        native.list_folder(1, "")
    with pytest.raises(NotADirectoryError):
        native.list_folder(__file__, "")


CHANGES: dict[str, Callable[[Path], object]] = {
    "add": lambda root: (root / "train/a/new.jpg").write_bytes(jpeg(1)),
    "remove": lambda root: (root / "train/a/0.jpg").unlink(),
    "move to another class": lambda root: (root / "train/a/0.jpg").rename(root / "train/b/0.jpg"),
    "new class": lambda root: write_files(root, {"train/c/0.jpg": jpeg(1), "val/c/0.jpg": jpeg(2)}),
    "into an empty folder": lambda root: write_files(root, {"train/a/later/still/1.jpg": jpeg(1)}),
    "hide": lambda root: (root / "train/a/0.jpg").rename(root / "train/a/.0.jpg"),
}


def some_files() -> dict[str, bytes]:
    names = [f"train/{'ab'[number % 2]}/{number}.jpg" for number in range(6)] + ["val/a/0.jpg", "val/b/1.jpg"]
    return {name: jpeg(number) for number, name in enumerate(names)}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_samples_is_noticed(tmp_path: Path, change: str) -> None:
    root = write_files(tmp_path / "data", some_files())
    (root / "train/a/later/still").mkdir(parents=True)
    opened(root)
    CHANGES[change](root)
    changed = opened(root)
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg") if not path.name.startswith("."))
    assert changed.val is not None
    assert sorted([*changed.train.names, *changed.val.names]) == found


def test_an_image_written_over_in_place_is_read_anew(tmp_path: Path) -> None:
    root = write_files(tmp_path / "data", some_files())
    before = opened(root).train.known_locators()
    (root / "train/a/0.jpg").write_bytes(b"other")
    again = opened(root)
    assert again.train.read(np.array([0])) == [b"other"]
    assert again.train.lengths[0] == 5
    assert not np.array_equal(again.train.known_locators()[0], before[0])
    assert np.array_equal(again.train.known_locators()[1:], before[1:])


def test_a_class_folder_that_is_emptied_is_refused(tmp_path: Path) -> None:
    root = write_files(tmp_path / "data", some_files())
    for path in (root / "train" / "a").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"different classes|no samples"):
        opened(root)


@given(st.lists(st.binary(max_size=50).filter(lambda name: b"\0" not in name)))
def test_names_survive_as_bytes(names: list[bytes]) -> None:
    decoded = [os.fsdecode(name) for name in names]
    assert unpack_names(pack_names(decoded)) == decoded
    if names:
        blob, offsets = pack_paths(decoded)
        assert [blob[at : blob.index(0, at)] for at in offsets.tolist()] == names
