import contextlib
import io
import pickle
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import DataError, ObjectMissing, StorageError, UserError
from flatout.storage import Entry, Range
from flatout.storage.local import TarStore
from flatout.storage.tar_index import index_tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def make(path: Path, members: list[tuple[str, bytes]], tar_format: int = tarfile.PAX_FORMAT) -> TarStore:
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return TarStore(str(path))


@pytest.mark.parametrize("tar_format", FORMATS.values(), ids=FORMATS.keys())
def test_reads_what_tarfile_wrote(tmp_path: Path, tar_format: int) -> None:
    members = [
        ("top/a.jpg", b"123"),
        ("top/empty", b""),
        ("top/" + "n" * 90, b"x" * 512),
        ("b c\u00e9.jpg", b"y" * 513),
    ]
    store = make(tmp_path / "t.tar", members, tar_format)
    assert list(store.entries()) == [Entry(name, len(data)) for name, data in members]
    assert store.read_many([Range(name) for name, _ in members]) == [data for _, data in members]
    assert store.read_many([Range("b c\u00e9.jpg", 500, 13), Range("top/a.jpg", 1)]) == [b"y" * 13, b"23"]


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_odd_and_undecodable_names(tmp_path: Path, tar_format: int) -> None:
    names = ["d/" * 100 + "x" * 255, "new\nline.jpg", "bad\udcff.jpg", "日本" * 60]
    store = make(tmp_path / "t.tar", [(name, name.encode(errors="surrogateescape")) for name in names], tar_format)
    assert [entry.name for entry in store.entries()] == names
    assert store.read_many([Range(name) for name in names]) == [name.encode(errors="surrogateescape") for name in names]


NAMES = st.text("abé/\n ", min_size=1, max_size=300).filter(lambda name: name.strip("/ "))
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=8)


@given(MEMBERS, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_offsets_are_those_of_tarfile(
    tmp_path_factory: pytest.TempPathFactory, members: list[tuple[str, bytes]], tar_format: int
) -> None:
    members = [(name.strip("/"), data) for name, data in members]
    path = tmp_path_factory.mktemp("tar") / "t.tar"
    make(path, members, tar_format)
    with tarfile.open(path) as archive:
        expected = {member.name: (member.offset_data, member.size) for member in archive if member.isreg()}
    assert index_tar(str(path)) == expected


def test_folders_and_links_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE):
            info = tarfile.TarInfo(f"kind-{kind.decode()}")
            info.type, info.linkname = kind, "../../etc/passwd"
            info.size = 700 if kind == tarfile.LNKTYPE else 0  # claimed, but nothing follows
            archive.addfile(info)
    assert [entry.name for entry in TarStore(str(path)).entries()] == ["kind-0"]


def test_a_leading_dot_is_dropped_and_the_last_of_equals_counts(tmp_path: Path) -> None:
    store = make(tmp_path / "t.tar", [("./a", b"old"), ("./b", b"b"), ("a", b"newer")])
    assert set(store.entries()) == {Entry("a", 5), Entry("b", 1)}
    assert store.read_many([Range("a")]) == [b"newer"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "./../x", "x" * 200 + "\0y"])
def test_members_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="leads out of the archive"):
        list(make(tmp_path / "t.tar", [("a", b""), (name, b"x")]).entries())


def test_missing_members_and_ranges_are_values(tmp_path: Path) -> None:
    missing, outside, good = make(tmp_path / "t.tar", [("a", b"123")]).read_many(
        [Range("b"), Range("a", 2, 2), Range("a")]
    )
    assert isinstance(missing, ObjectMissing)
    assert isinstance(outside, StorageError)
    assert good == b"123"


@pytest.mark.parametrize(("mode", "command"), [("w:gz", "gzip -d"), ("w:bz2", "bzip2 -d"), ("w:xz", "xz -d")])
def test_a_compressed_archive_says_how_to_decompress_it(tmp_path: Path, mode: str, command: str) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, mode):  # type: ignore[call-overload]
        pass
    with pytest.raises(UserError, match=command):
        index_tar(str(path))


@pytest.mark.parametrize("keep", [1, 511, 513, 1000, 2000])
def test_a_truncated_archive_is_never_read_short(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.tar"
    store = make(path, [("a", b"x" * 600), ("b", b"y" * 600)])
    path.write_bytes(path.read_bytes()[:keep])
    try:
        found = {entry.name for entry in store.entries()}
    except StorageError:
        return
    assert store.read_many([Range(name) for name in found]) == [b"x" * 600] * len(found)


@given(st.binary(min_size=512, max_size=2048))
def test_any_bytes_are_an_error_or_an_index(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("tar") / "t.tar"
    path.write_bytes(data)
    with contextlib.suppress(StorageError, UserError):
        index_tar(str(path))


@given(st.integers(0, 1535), st.integers(0, 255))
def test_one_changed_byte_never_leads_out(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    path = tmp_path_factory.mktemp("tar") / "t.tar"
    make(path, [("a", b"x" * 600)])
    changed = bytearray(path.read_bytes())
    changed[at] = value
    path.write_bytes(changed)
    try:
        index = index_tar(str(path))
    except (StorageError, UserError):
        return
    assert all(start + size <= len(changed) for start, size in index.values())


def test_no_such_archive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be opened"):
        index_tar(str(tmp_path / "none.tar"))


def test_the_index_travels_with_a_pickle(tmp_path: Path) -> None:
    store = make(tmp_path / "t.tar", [("a", b"123")])
    list(store.entries())
    copy = pickle.loads(pickle.dumps(store))
    assert copy._members == {"a": (512, 3)}
    assert copy.read_many([Range("a")]) == [b"123"]
    assert copy.local_path("a") is None
    assert copy.url == store.url
