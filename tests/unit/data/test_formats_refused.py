"""What is wrong with a dataset is one line that says what was found and what to do."""

import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import layout_files as made
from flatout.config.schema import DataConfig
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.formats import parquet as parquet_format
from flatout.data.source.formats.devkit import read_wnids
from flatout.errors import FlatoutError, ObjectMissing
from flatout.storage import members

FILES = made.pictures(train=3, val=1)
FLAT = {f"{letter}.jpg": made.picture(number) for number, letter in enumerate("abcd")}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(path: Path, **keys: object) -> Dataset:
    return open_dataset(DataConfig(path=str(path), **keys))  # type: ignore[arg-type]


def refused(path: Path, says: str, **keys: object) -> None:
    with pytest.raises(FlatoutError, match=says) as caught:
        opened(path, **keys)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


TABLES = {
    "no header": (b"a.jpg,x\nb.jpg,y\n", "has the columns a.jpg, x, and none of the file: call it path"),
    "no label": (b"path,weight\na.jpg,1\n", "has the columns path, weight, and none of the label: call it label"),
    "no rows": (b"path,label\n", "has no rows below its header"),
    "empty": (b"", "has no rows"),
    "a file that is not there": (b"path,label\na.jpg,x\nz.jpg,y\n", r"line 3 names 'z.jpg', which is not in"),
    "twice": (b"path,label\na.jpg,x\n./a.jpg,y\n", r"line 3 names 'a.jpg' a second time \(first in line 2\)"),
    "out of the folder": (b"path,label\n../a.jpg,x\n", r"names '../a.jpg', which leads out of"),
    "no class": (b"path,label\na.jpg,\n", "line 2 has no label"),
    "a split of its own": (b"path,label,split\na.jpg,x,holiday\n", "has the split 'holiday'; use train, val or test"),
    "too many values": (b"path,label\na.jpg,x,y\n", "line 2 has 3 values but the header 2"),
    "an open quote": (b'path,label\n"a.jpg,x\n', "cannot be read: unexpected end of data; check its quotes"),
    "UTF-16": ("path,label\na.jpg,x\n".encode("utf-16"), r"is not UTF-8 text \(byte 0\); save it as UTF-8"),
    "a column twice": (b"path,label,label\na.jpg,x,y\n", "has a column twice"),
    "validation only": (b"path,label,split\na.jpg,x,val\n", "names no training samples"),
    "a class only in val": (b"path,label,split\na.jpg,x,train\nb.jpg,y,val\n", "'y' is only in val"),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLES)
def test_tables(tmp_path: Path, what: str) -> None:
    table, says = TABLES[what]
    made.write_files(tmp_path, FLAT | {"labels.csv": table})
    refused(tmp_path / "labels.csv", says)


@pytest.mark.parametrize("folder", ["images", None])
def test_a_table_of_files_that_are_elsewhere(tmp_path: Path, folder: str | None) -> None:
    """In another folder, or nowhere: not an error about folders of classes, which nobody meant."""
    files = {} if folder is None else {f"{folder}/{name}": data for name, data in FLAT.items()}
    made.write_files(tmp_path / "data", {**files, "labels.csv": b"path,label\na.jpg,x\nb.jpg,y\n"})
    refused(tmp_path / "data", r"labels.csv line 2 names 'a.jpg', which is not in")


def test_a_label_column_that_is_not_there(tmp_path: Path) -> None:
    made.write_files(tmp_path, FLAT | {"labels.csv": b"path,label\na.jpg,x\n"})
    refused(
        tmp_path / "labels.csv",
        "data.label_column is 'breed', but .* has the columns path, label",
        label_column="breed",
    )


def test_folders_and_a_table_that_disagree(tmp_path: Path) -> None:
    table = made.table_of(FILES).replace(b'"cat"', b'"lion"')
    made.write_files(tmp_path, FILES | {"labels.csv": table})
    refused(
        tmp_path, r"has 3 folders such as 'cat', and labels.csv with other labels; say which is meant with data.layout"
    )
    assert opened(tmp_path, layout="folders").classes == ("cat", "dog", "eel")
    assert opened(tmp_path, layout="table").classes == ("dog", "eel", "lion")


@pytest.mark.parametrize("other", [b"\xff\xfe\x00", b'a,b\n1,2,3\n"x', b"step,loss\n1,2\n", b""])
def test_a_file_of_other_figures_beside_the_classes_is_left_alone(tmp_path: Path, other: bytes) -> None:
    assert opened(made.write_files(tmp_path, FILES | {"notes.csv": other})).classes == ("cat", "dog", "eel")


def test_broken_json_lines(tmp_path: Path) -> None:
    made.write_files(tmp_path, FLAT | {"metadata.jsonl": b'{"file_name": "a.jpg", "label": 1}\n[1]\n'})
    refused(tmp_path, r"metadata.jsonl line 2 is '\[1\]'; expected one JSON object on each line")


# --- archives ---------------------------------------------------------------------------------------------------------


def zipped(change: Callable[[zipfile.ZipFile], None] = lambda archive: None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
        change(archive)
    return out.getvalue()


def _bomb(data: bytes) -> bytes:
    """The first member claims a terabyte."""
    at = data.index(b"PK\1\2")
    return data[: at + 24] + struct.pack("<L", 0xFFFFFFF0) + data[at + 28 :]


def _overlapping(data: bytes) -> bytes:
    """Every entry of the directory is the first member, many times over."""
    at = data.index(b"PK\1\2")
    first, end = data[at : at + 46 + data[at + 28]], data.index(b"PK\5\6")
    directory = first * 4000
    tail = data[end:]
    return data[:at] + directory + tail[:12] + struct.pack("<LL", len(directory), at) + tail[20:]


def _ending_at(offset: int) -> bytes:
    """Whose zip64 record points so far."""
    data = zipped()
    end = data.index(b"PK\5\6")
    place = struct.pack("<4sLQL", b"PK\6\7", 0, offset, 1)
    return data[:end] + place + data[end : end + 12] + b"\xff" * 8 + data[end + 20 :]


ZIPS = {
    "cut": (lambda: zipped()[:-100], "is not a zip, or its end is missing"),
    "empty": (lambda: b"", "is not a zip"),
    "an end far away": (lambda: _ending_at(2**63 - 1), "has a damaged end record"),
    "an end beyond all numbers": (lambda: _ending_at(2**64 - 1), "has a damaged end record"),
    "no room before its end": (lambda: _ending_at(0)[-22:], "names a directory of"),
    "a directory that lies": (lambda: zipped()[:-10] + struct.pack("<L", 2**31) + zipped()[-6:], "names a directory of"),
    "a bomb": (lambda: _bomb(zipped()), "claims 4294967280 bytes from .*, which no deflate can do"),
    "overlapping members": (lambda: _overlapping(zipped()), "that overlap; refusing it"),
    "out of the archive": (lambda: zipped(lambda a: a.writestr("../../etc/x.jpg", b"x")), "leads out of the archive"),
    "absolute": (lambda: zipped(lambda a: a.writestr("/etc/x.jpg", b"x")), "leads out of the archive"),
    "a rare method": (lambda: zipped(lambda a: a.writestr("x/1.jpg", b"x" * 99, zipfile.ZIP_LZMA)), "packed by method 14"),
}  # fmt: skip


@pytest.mark.parametrize("what", ZIPS)
def test_zips(tmp_path: Path, what: str) -> None:
    make, says = ZIPS[what]
    (tmp_path / "set.zip").write_bytes(make())
    refused(tmp_path / "set.zip", says)


def test_an_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zipped())
    at = data.index(b"PK\1\2")
    data[at + 8] |= 1
    (tmp_path / "set.zip").write_bytes(bytes(data))
    refused(tmp_path / "set.zip", "is encrypted; unzip it with its password")


def test_a_damaged_member_is_quarantined_and_the_others_are_read(tmp_path: Path) -> None:
    path = made.write_zip(tmp_path / "set.zip", FILES)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("train/cat/t0.jpg")
    data = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    data[at : at + 8] = bytes(each ^ 0xFF for each in data[at : at + 8])
    path.write_bytes(bytes(data))
    split = opened(path).train
    answers = split.reader.locate(split.rows)
    assert [isinstance(answer, ObjectMissing) for answer in answers] == [True] + [False] * (len(split) - 1)
    assert "download the archive again" in str(answers[0])


def test_a_member_that_would_fill_the_memory_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_INFLATED_BYTES", 100)
    split = opened(made.write_zip(tmp_path / "set.zip", FILES)).train
    assert all("limit 100" in str(answer) for answer in split.reader.locate(split.rows))


# --- shards, parquet, ImageNet ----------------------------------------------------------------------------------------


def shard(**parts: bytes) -> bytes:
    return made.tar_of(
        {"0.jpg": made.picture(0), "0.cls": b"0"} | {f"1.{ending}": data for ending, data in parts.items()}
    )


SHARDS = {
    "no class": (shard(jpg=b"x"), "the sample '1' has no class: it has jpg; expected .cls, or .json with label"),
    "no image": (shard(cls=b"1"), "the sample '1' has cls, and not one image"),
    "two images": (shard(jpg=b"x", png=b"y", cls=b"1"), "the sample '1' has cls, jpg, png, and not one image"),
    "json that is none": (shard(jpg=b"x", json=b"{"), "is not a JSON object"),
    "a class without a name": (shard(jpg=b"x", cls=b"7"), "has the class 7, but classes.txt names 2, from 0 on"),
    "a class below 0": (shard(jpg=b"x", cls=b"-1"), "has samples of 2 classes that classes.txt does not name, such as"),
    "no tar": (b"x" * 2000, "is not a tar, or is damaged at byte 0"),
    "cut": (shard(jpg=b"x" * 5000, cls=b"1")[:5000], "ends beyond the archive"),
    "a class of many digits": (shard(jpg=b"x", cls=b"7" * 5000), "has samples of 2 classes that classes.txt does not"),
}  # fmt: skip


@pytest.mark.parametrize("what", SHARDS)
def test_shards(tmp_path: Path, what: str) -> None:
    data, says = SHARDS[what]
    made.write_files(tmp_path, {"train-0.tar": data, "classes.txt": b"x\ny\n"})
    refused(tmp_path, says)


def test_parquet_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.parquet"
    made.write_parquet(path, FILES, "train")
    whole = path.read_bytes()
    refused(path, "has the columns image: struct.* and no class", label_column="breed")
    monkeypatch.setattr(parquet_format, "MAX_GROUP_BYTES", 1000)
    refused(path, r"row group 0 unpacks to \d+ bytes, limit 1000; write it again with smaller row groups")
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "cannot be read as parquet: .*; download it again")
    path.write_bytes(b"PAR1")
    refused(path, "cannot be read as parquet")
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    assert not list((tmp_path / "cache").rglob("*.data"))


def test_parquet_without_its_images(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    images = [{"bytes": None, "path": "a.jpg"}]
    parquet.write_table(pa.table({"image": pa.array(images), "label": [1]}), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "row 0 has no bytes of its image, only the path 'a.jpg'")


def parquet_of(path: Path, labels: list[object]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    images = [{"bytes": made.picture(number), "path": f"{number}.jpg"} for number in range(len(labels))]
    parquet.write_table(pa.table({"image": pa.array(images), "label": labels}), path)
    return path


def test_parquet_with_a_zero_byte_in_a_class(tmp_path: Path) -> None:
    path = parquet_of(tmp_path / "a.parquet", ["x", "y\0z"])
    for _ in range(2):  # what is kept of it is no way round
        refused(path, r"row 1 has the label 'y\\x00z'; expected one class")


def test_parquet_with_true_and_false_as_classes(tmp_path: Path) -> None:
    assert opened(parquet_of(tmp_path / "a.parquet", [True, False] * 4)).classes == ("False", "True")


def test_a_pipe_in_place_of_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    path = parquet_of(tmp_path / "a.parquet", [0, 1] * 4)
    assert opened(path).classes == ("0", "1")
    (lock,) = (tmp_path / "cache").rglob("*.lock")
    lock.unlink()
    os.mkfifo(lock)
    assert opened(path).classes == ("0", "1")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a-0.tar.gz"], "decompress it first: gunzip"),
        (["train/data-0.arrow", "train/state.json", "validation/data-0.arrow"], r"to_parquet\('train.parquet'\)"),
        (["train/index.json", "train/shard.00000.mds.zstd"], "it is compressed .zstd.: decompress the shards first"),
    ],
)
def test_what_nobody_reads_in_place_is_said_with_what_to_do(tmp_path: Path, names: list[str], says: str) -> None:
    shard = {
        "column_names": ["image", "label"], "column_encodings": ["jpeg", "int"], "column_sizes": [None, 8],
        "compression": "zstd", "raw_data": {"basename": "shard.00000.mds"},
    }  # fmt: skip
    index = json.dumps({"version": 2, "shards": [shard]}).encode()
    made.write_files(tmp_path / "set", {name: index if name.endswith("index.json") else b"x" for name in names})
    refused(tmp_path / "set", says)


def test_validation_images_of_imagenet_without_their_classes(tmp_path: Path) -> None:
    made.write_files(tmp_path, made.imagenet_downloads(made.imagenet_files(), nested=False, truth=""))
    refused(tmp_path, r"has validation images but not their classes; put LOC_val_solution.csv")


def test_a_devkit_that_is_damaged(tmp_path: Path) -> None:
    files = made.imagenet_downloads(made.imagenet_files(), nested=False, truth="devkit")
    meta = next(name for name in files if name.endswith("meta.mat"))
    made.write_files(tmp_path, files | {meta: files[meta][:300]})
    refused(tmp_path, "is not the meta.mat of ImageNet's devkit")


def test_a_devkit_whose_archive_is_damaged(tmp_path: Path) -> None:
    files = made.imagenet_downloads(made.imagenet_files(), nested=False, truth="tar.gz")
    made.write_files(tmp_path, files | {"ILSVRC2012_devkit_t12.tar.gz": zlib.compress(b"x" * 2000, wbits=31)})
    refused(tmp_path, "ILSVRC2012_devkit_t12.tar.gz is not a tar, or is damaged at byte 0")


@pytest.mark.parametrize("name", ["ILSVRC2012_validation_ground_truth.txt", "map_clsloc.txt"])
def test_classes_of_imagenet_with_more_digits_than_a_number_has(tmp_path: Path, name: str) -> None:
    files = made.imagenet_downloads(made.imagenet_files(), nested=False, truth="map")
    made.write_files(
        tmp_path,
        files | {name: files[name].replace(b"1\n", b"1" * 5000 + b"\n").replace(b" 1 ", b" " + b"1" * 5000 + b" ")},
    )
    refused(tmp_path, "names the class '1+', which is not among the [23] of")


@pytest.mark.parametrize("number", [math.inf, math.nan, 1.5])
def test_a_devkit_whose_number_is_none(number: float) -> None:
    whole = made.meta_mat({"n01440764": 1, "n02119789": 2}, first=number)
    assert read_wnids(whole, "meta.mat") == {2: "n02119789"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 1}, "is not an index of MDS shards of version 2"),
        ({"shards": [{"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [8]}]}, "and no image"),
        ({"shards": [{"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [[8]]}]}, "expected a whole"),
        ({"shards": [{"column_names": ["x"], "column_encodings": [{}], "column_sizes": [8]}]}, "expected text"),
    ],
)
def test_an_mds_index_of_something_else(tmp_path: Path, change: dict[str, object], says: str) -> None:
    files = made.mds_of(FILES)
    index = {**json.loads(files["train/index.json"]), **change}
    made.write_files(tmp_path, files | {"train/index.json": json.dumps(index).encode()})
    refused(tmp_path, says)


@pytest.mark.parametrize("count", [0, 10, 2**32 - 1])
def test_an_mds_shard_that_lies_about_itself(tmp_path: Path, count: int) -> None:
    files = made.mds_of(FILES)
    shard = files["train/shard.00000.mds"]
    made.write_files(tmp_path, files | {"train/shard.00000.mds": struct.pack("<I", count) + shard[4:]})
    refused(tmp_path, "names none|does not fit|points outside|no training samples")


@pytest.mark.parametrize("kind", ["int64", "int8"])
def test_an_mds_class_of_another_size_than_its_type(tmp_path: Path, kind: str) -> None:
    files = made.mds_of(FILES)
    index = json.loads(files["train/index.json"])
    index["shards"][0] |= {"column_encodings": [kind, "jpeg"], "column_sizes": [4, None]}
    sample = struct.pack("<Ii", 3, 1) + b"jpg"
    shard = struct.pack("<3I", 1, 12, 12 + len(sample)) + sample
    changed = {"train/index.json": json.dumps(index).encode(), "train/shard.00000.mds": shard}
    made.write_files(tmp_path, files | changed)
    refused(tmp_path, f"at byte 12 has 4 bytes of its class, and {kind} has ")


# --- classes and splits -----------------------------------------------------------------------------------------------


def test_class_lists(tmp_path: Path) -> None:
    made.write_files(tmp_path / "set", FILES)
    (tmp_path / "two.txt").write_text("# mine\ndog a dog\neel\n")
    dataset = opened(tmp_path / "set", classes=str(tmp_path / "two.txt"))
    assert dataset.classes == ("dog", "eel")
    assert "3 samples are of 1 classes that data.classes does not name ('cat'), which are left out" in dataset.notes
    listed = {"classes": ["dog", "eel"]}
    refused(
        tmp_path / "set", r"classes that data.classes does not name \('cat'\); add them", unlisted="refuse", **listed
    )
    (tmp_path / "two.txt").write_text("dog\nzebra\n")
    refused(tmp_path / "set", "names 'zebra', which is not among the 3 classes", classes=str(tmp_path / "two.txt"))
    refused(tmp_path / "set", "cannot be read: No such file", classes=str(tmp_path / "none.txt"))


def test_a_split_by_name_moves_nobody_when_files_come(tmp_path: Path) -> None:
    files = {f"{label}/{number}.jpg": made.picture(number) for label in "ab" for number in range(40)}
    before = opened(made.write_files(tmp_path / "set", files), split=0.25)
    assert before.val is not None
    assert 5 < len(before.val) < 40
    more = {f"{label}/new-{number}.jpg": made.picture(number) for label in "abc" for number in range(40)}
    after = opened(made.write_files(tmp_path / "set", more), split=0.25)
    assert after.val is not None
    assert set(before.val.names) <= set(after.val.names)
    assert set(before.train.names) <= set(after.train.names)
    table = "path,label\n" + "".join(f"x/{name.replace('/', '-')}/{name.split('/')[1]},{name[0]}\n" for name in files)
    flat = {f"x/{name.replace('/', '-')}/{name.split('/')[1]}": data for name, data in files.items()}
    by_table = opened(made.write_files(tmp_path / "flat", flat | {"labels.csv": table.encode()}), split=0.25)
    assert by_table.val is not None
    assert {name.split("/")[1].replace("-", "/", 1) for name in by_table.val.names} == set(before.val.names)
    made.write_files(tmp_path / "own", FILES)
    refused(tmp_path / "own", r"data.split is 0.1 but .* has a validation split of its own \(3 samples\)", split=0.1)
