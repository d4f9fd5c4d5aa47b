"""Packs: what is written is what was there, and a damaged or hostile one is refused in one line."""

import hashlib
import json
import os
import pickle
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_datasets import encoded, jpeg, opened, pixels, write_files, write_tar

from flatout.data.pixels.decode import decode_pixels
from flatout.data.source.dataset import Dataset
from flatout.data.source.pack import PackIndex, PackReader, decode_index, encode_index, read_manifest
from flatout.data.source.pack_writer import PackOptions, unpack, write_pack
from flatout.errors import DataError, NoSpace
from flatout.storage import open_store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def files(count: int = 12) -> dict[str, bytes]:
    names = [f"train/{'ab'[number % 2]}/{number:03d}.jpg" for number in range(count)]
    samples = {name: jpeg(number, 20 + number, 30 - number) for number, name in enumerate(names)}
    return samples | {f"val/{name}/0.jpg": jpeg(50 + label) for label, name in enumerate("ab")}


def packed(source: Path, folder: Path, **options: Any) -> Dataset:
    assert list(write_pack(opened(source), folder, PackOptions(**options)))
    return opened(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files", files())


def contents(dataset: Dataset) -> dict[str, tuple[int, bytes]]:
    splits = [split for split in (dataset.train, dataset.val) if split is not None]
    return {
        name: (int(label), bytes(data))
        for split in splits
        for name, label, data in zip(split.names, split.labels, split.read(np.arange(len(split))), strict=True)
    }


# --- what a pack holds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_bytes", [1, 2000, 10**9])
def test_a_pack_has_the_samples_order_and_fingerprint_of_its_source(
    folder: Path, tmp_path: Path, shard_bytes: int
) -> None:
    source = opened(folder)
    pack = packed(folder, tmp_path / "pack", shard_bytes=shard_bytes)
    assert contents(pack) == contents(source)
    assert (pack.fingerprint, pack.classes) == (source.fingerprint, source.classes)
    assert pack.train.names == source.train.names
    left_over = {path.suffix for path in (tmp_path / "pack").iterdir()} - {".data", ".index", ".json"}
    assert left_over == set()
    assert not (tmp_path / "pack" / "packing.json").exists()


def test_a_tar_packs_to_the_same_bytes_as_a_folder(folder: Path, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "files.tar", files(), prefix="outer/inner/")
    packed(folder, tmp_path / "a")
    packed(tar, tmp_path / "b")
    for name in ("train.index", "val.index", "train-00000.data", "val-00000.data", "pack.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_dataset_without_val_keeps_its_held_out_samples(tmp_path: Path) -> None:
    root = write_files(tmp_path / "flat", {f"{'ab'[n % 2]}/{n:03d}.jpg": jpeg(n) for n in range(60)})
    source = opened(root)
    assert source.val is not None
    pack = packed(root, tmp_path / "pack")
    assert contents(pack) == contents(source)
    assert pack.fingerprint == source.fingerprint
    list(unpack(pack, tmp_path / "back"))
    assert opened(tmp_path / "back").fingerprint == source.fingerprint


def test_the_tiny_imagenet_layout_comes_back_from_a_pack(tmp_path: Path) -> None:
    samples = {f"train/n0{c}/images/n0{c}_{i}.JPEG": jpeg(10 * c + i) for c in range(3) for i in range(4)}
    samples |= {f"val/images/val_{i}.JPEG": jpeg(90 + i) for i in range(6)}
    lines = "".join(f"val_{i}.JPEG\tn0{i % 3}\t0\t0\t62\t62\n" for i in range(6))
    root = write_files(tmp_path / "tiny", samples | {"val/val_annotations.txt": lines.encode()})
    pack = packed(root, tmp_path / "pack")
    list(unpack(pack, tmp_path / "back"))
    again = opened(tmp_path / "back")
    assert again.fingerprint == pack.fingerprint == opened(root).fingerprint
    assert contents(again) == contents(opened(root))


ODD_NAMES = [
    "with space",
    "new\nline",
    "tab\t",
    "ünï",
    "e\u0301",
    "日本語",
    "🐈",
    "\udcff\udc80 bytes",
    "'\"\\",
    "a" * 251,
]


def test_odd_names_survive(tmp_path: Path) -> None:
    names = [f"train/cl\nass é/{name}.jpg" for name in ODD_NAMES] + ["train/z/0.jpg"]
    samples = {os.fsdecode(os.fsencode(name)): jpeg(number) for number, name in enumerate(names)}
    samples |= {"val/cl\nass é/0.jpg": jpeg(1), "val/z/0.jpg": jpeg(2)}
    root = write_files(tmp_path / "odd", samples)
    pack = packed(root, tmp_path / "pack")
    assert {name: data for name, (_, data) in contents(pack).items()} == samples
    list(unpack(pack, tmp_path / "back"))
    back = {str(path.relative_to(tmp_path / "back")): path for path in (tmp_path / "back").rglob("*.jpg")}
    assert {name: path.read_bytes() for name, path in back.items()} == samples
    assert opened(tmp_path / "back").fingerprint == opened(root).fingerprint == pack.fingerprint


def test_files_without_a_byte_are_kept_too(tmp_path: Path) -> None:
    samples = files(4) | {"val/a/0.jpg": b"", "val/b/0.jpg": b"", "train/a/empty.jpg": b""}
    root = write_files(tmp_path / "empty", samples)
    assert contents(packed(root, tmp_path / "pack")) == contents(opened(root))
    assert contents(packed(root, tmp_path / "many", shard_bytes=1)) == contents(opened(root))


def test_a_reader_works_after_a_pickle(folder: Path, tmp_path: Path) -> None:
    pack = packed(folder, tmp_path / "pack")
    before = contents(pack)
    assert contents(pickle.loads(pickle.dumps(pack))) == before


def test_decoded_packs_hold_the_pixels(folder: Path, tmp_path: Path) -> None:
    pack = packed(folder, tmp_path / "pack", mode="decoded", shard_bytes=3000)
    source, ids = opened(folder), np.arange(len(pack.train))
    shapes = pack.train.shapes(ids)
    assert shapes is not None
    for shape, raw, original in zip(shapes, pack.train.read(ids), source.train.read(ids), strict=True):
        assert np.array_equal(np.frombuffer(raw, np.uint8).reshape(*shape, 3), decode_pixels(original))
    assert pack.fingerprint == source.fingerprint


@pytest.mark.parametrize("mode", ["resized", "decoded"])
def test_what_cannot_be_decoded(tmp_path: Path, mode: str) -> None:
    root = write_files(tmp_path / "bad", files() | {"train/a/000.jpg": b"no image"})
    if mode == "decoded":
        with pytest.raises(DataError, match=r"'train/a/000.jpg' cannot be decoded .*use --mode original"):
            packed(root, tmp_path / "pack", mode=mode)
    else:
        assert contents(packed(root, tmp_path / "pack", mode=mode))["train/a/000.jpg"] == (0, b"no image")


@pytest.mark.parametrize("short_side", [16, 40, 64])
def test_resized_packs_honour_the_short_side(tmp_path: Path, short_side: int) -> None:
    turned = Image.fromarray(pixels(4, 90, 50))
    exif = turned.getexif()
    exif[0x0112] = 6  # lies on its side: upright it is 50 wide and 90 high
    samples = {"train/a/tall.jpg": jpeg(1, 50, 100), "train/a/wide.png": encoded(pixels(2, 120, 48), "PNG")}
    samples |= {"train/b/turned.jpg": encoded(turned, exif=exif), "train/b/grey.jpg": encoded(turned.convert("L"))}
    samples |= {"val/a/line.png": encoded(pixels(3, 500, 1), "PNG"), "val/b/0.jpg": jpeg(5, 41, 41)}
    root = write_files(tmp_path / "files", samples)
    source, pack = opened(root), packed(root, tmp_path / "pack", mode="resized", short_side=short_side)
    assert pack.fingerprint == source.fingerprint
    assert pack.train.names == source.train.names
    assert (pack.train.lengths == source.train.lengths).all()  # of the originals: they are part of the fingerprint
    for name, (_, data) in contents(pack).items():
        before, after = decode_pixels(contents(source)[name][1]).shape, decode_pixels(data).shape
        assert data.startswith(b"\xff\xd8")
        assert min(after[:2]) == min(short_side, *before[:2])
        assert after[0] * before[1] == pytest.approx(after[1] * before[0], rel=0.5 / min(after[:2]))


def test_options_out_of_range_are_refused() -> None:
    for wrong in [("zip", 1, 90, 1), ("resized", 0, 90, 1), ("resized", 1, 101, 1), ("original", 1, 90, 0)]:
        with pytest.raises(Exception, match=r"mode is one of original, resized, decoded"):
            PackOptions.checked(*wrong)


# --- the format, read by somebody who has only docs/pack-format.md -----------------------------------------------------


def read_by_the_book(folder: Path) -> Iterator[tuple[str, int, bytes, int, int]]:
    """Name, label, bytes, height and width of every sample, with every check the page asks for."""
    manifest = json.loads((folder / "pack.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("flatout-pack", 2)
    parts = []
    for split in ("train", "val"):
        entry = manifest["splits"][split]
        shards = [(folder / shard["name"]).read_bytes() for shard in entry["shards"]]
        assert [len(shard) for shard in shards] == [shard["bytes"] for shard in entry["shards"]]
        index = (folder / entry["index"]).read_bytes()
        magic, version, mode, n, name_bytes, digest = struct.unpack_from("<8sIIQQ32s", index)
        assert (magic, version) == (b"FLATPACK", 2)
        assert ["original", "resized", "decoded"][mode] == manifest["mode"]
        assert n == entry["samples"]
        assert hashlib.sha256(index[64:]).digest() == digest
        columns, at = [], 64
        for kind, size in [("Q", 8)] * 4 + [("I", 4)] * 4:
            columns.append(struct.unpack_from(f"<{n}{kind}", index, at))
            at += n * size
        digests, originals, names = index[at : at + 16 * n], index[at + 16 * n : at + 32 * n], index[at + 32 * n :]
        assert len(names) == name_bytes
        fingerprint = hashlib.sha256(b"".join(os.fsencode(name) + b"\0" for name in manifest["classes"]))
        start = 0
        for i, (offset, length, original, end, shard, label, height, width) in enumerate(zip(*columns, strict=True)):
            data, name, start = shards[shard][offset : offset + length], names[start:end], end
            assert len(data) == length
            assert xxhash.xxh3_128_digest(data) == digests[16 * i : 16 * i + 16]
            assert manifest["mode"] != "original" or originals[16 * i : 16 * i + 16] == digests[16 * i : 16 * i + 16]
            fingerprint.update(b"%d %d %s\0" % (label, original, name))
            yield os.fsdecode(name), label, data, height, width
        parts.append(fingerprint.hexdigest())
    assert hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32] == manifest["fingerprint"]


@pytest.mark.parametrize("mode", ["original", "resized", "decoded"])
def test_the_format_page_is_enough_to_read_a_pack(folder: Path, tmp_path: Path, mode: str) -> None:
    pack = packed(folder, tmp_path / "pack", mode=mode, short_side=10, shard_bytes=2500)
    by_the_book = list(read_by_the_book(tmp_path / "pack"))
    assert {name: (label, data) for name, label, data, _, _ in by_the_book} == contents(pack)
    names = [name for name, *_ in by_the_book]
    assert names == [*pack.train.names, *(pack.val.names if pack.val else ())]
    for _, _, data, height, width in by_the_book:
        assert len(data) == 3 * height * width if mode == "decoded" else (height, width) == (0, 0)


# --- the index --------------------------------------------------------------------------------------------------------


@st.composite
def indexes(draw: st.DrawFn) -> tuple[PackIndex, list[int]]:
    mode = draw(st.sampled_from(["original", "resized", "decoded"]))
    names = tuple(os.fsdecode(name) for name in draw(st.lists(st.binary(max_size=60), max_size=30)))
    shards = draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
    n = len(names)

    def numbers(most: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, most), min_size=n, max_size=n)), np.uint64)

    shard, height, width = numbers(len(shards) - 1), numbers(200) + np.uint64(1), numbers(200) + np.uint64(1)
    if mode == "decoded":
        shards = [size + 3 * 201 * 201 for size in shards]
    room = np.array(shards, np.uint64)[shard]
    length = 3 * height * width if mode == "decoded" else np.minimum(numbers(2**30), room)
    offset = np.minimum(numbers(2**40), room - length)
    if mode != "decoded":
        height, width = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    digest = np.frombuffer(draw(st.binary(min_size=16 * n, max_size=16 * n)), "V16")
    name_end = np.cumsum([len(os.fsencode(name)) for name in names], dtype=np.uint64)
    arrays = {
        "offset": offset, "length": length, "original_length": numbers(2**62), "name_end": name_end, "shard": shard,
        "label": numbers(2**32 - 1), "height": height, "width": width, "digest": digest,
    }  # fmt: skip
    return PackIndex(mode, arrays, names), shards


@settings(max_examples=80, deadline=None)
@given(indexes())
def test_an_index_survives_encoding(case: tuple[PackIndex, list[int]]) -> None:
    index, shards = case
    back = decode_index(encode_index(index), shards, "here")
    assert (back.mode, back.names) == (index.mode, index.names)
    for name, array in index.arrays.items():
        assert np.array_equal(back.arrays[name], array), name


@settings(max_examples=80, deadline=None)
@given(indexes(), st.data())
def test_a_damaged_index_is_refused(case: tuple[PackIndex, list[int]], data: st.DataObject) -> None:
    index, shards = case
    whole = bytearray(encode_index(index))
    if data.draw(st.booleans(), "truncate"):
        del whole[data.draw(st.integers(0, len(whole) - 1), "at") :]
    else:
        at = data.draw(st.integers(0, len(whole) - 1).filter(lambda at: not 12 <= at < 16), "byte")  # 12: see below
        whole[at] ^= 1 << data.draw(st.integers(0, 7), "bit")
    with pytest.raises(DataError) as refused:
        decode_index(bytes(whole), shards, "here")
    assert "\n" not in str(refused.value)


# --- hand-made packs, honest and hostile ------------------------------------------------------------------------------


@dataclass
class HandMade:
    """A pack written without the writer, so that anything can be wrong in it while all digests are right."""

    folder: Path
    names: Sequence[str] = ("train/a/0", "train/a/1", "train/b/2")
    mode: str = "original"

    def write(self, change: dict[str, list[int]] | None = None, manifest: dict[str, Any] | None = None) -> str:
        blobs = [jpeg(number) for number in range(len(self.names))]
        if self.mode == "decoded":
            blobs = [pixels(number).tobytes() for number in range(len(self.names))]
        ends = np.cumsum([len(each) for each in blobs])
        labels, lengths = [int("/b/" in name) for name in self.names], [len(each) for each in blobs]
        size = [[20, 24][axis] if self.mode == "decoded" else 0 for axis in range(2)]
        values: dict[str, Any] = {
            "offset": [0, *ends[:-1]], "length": lengths, "original_length": lengths, "shard": [0] * len(blobs),
            "name_end": np.cumsum([len(os.fsencode(name)) for name in self.names]), "label": labels,
            "height": [size[0]] * len(blobs), "width": [size[1]] * len(blobs),
        }  # fmt: skip
        arrays = {name: np.array(column, np.uint64) for name, column in (values | (change or {})).items()}
        digests = [hashlib.blake2b(each, digest_size=16).digest() for each in blobs]
        arrays["digest"] = np.array(digests, "V16")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "train-00000.data").write_bytes(b"".join(blobs))
        (self.folder / "train.index").write_bytes(encode_index(PackIndex(self.mode, arrays, tuple(self.names))))
        split = hashlib.sha256(b"a\0b\0")
        for name, label, length in zip(self.names, arrays["label"], arrays["original_length"], strict=True):
            split.update(b"%d %d %s\0" % (label, length, os.fsencode(name)))
        whole = {
            "format": "flatout-pack", "version": 1, "mode": self.mode, "classes": ["a", "b"],
            "fingerprint": hashlib.sha256(f"{split.hexdigest()} -".encode()).hexdigest()[:32],
            "splits": {"train": {"index": "train.index", "shards": [
                {"name": "train-00000.data", "bytes": len(b"".join(blobs))}]}},
        }  # fmt: skip
        (self.folder / "pack.json").write_text(json.dumps(whole | (manifest or {})))
        return str(self.folder)


def test_a_pack_made_by_hand_is_read(tmp_path: Path) -> None:
    for mode in ("original", "decoded"):
        pack = opened(Path(HandMade(tmp_path / mode, mode=mode).write()))
        assert set(contents(pack)) == {"train/a/0", "train/a/1", "train/b/2"}


HUGE = 2**64 - 1
HOSTILE = {
    "offset": [[HUGE] * 3, [2**63] * 3, [0, 2**40, 0], [2**64 - 500] * 3],
    "length": [[HUGE] * 3, [2**63] * 3, [2**41] * 3, [0, 0, 2**20]],
    "original_length": [[HUGE] * 3, [2**63, 1, 1]],
    "shard": [[1] * 3, [0, 0, 2**32 - 1]],
    "label": [[2] * 3, [0, 0, 2**32 - 1]],
    "name_end": [[HUGE] * 3, [9, 8, 27], [9, 18, 26], [9, 18, 28], [0, 0, 0], [2**63, 0, 27]],
    "height": [[0] * 3, [2**32 - 1] * 3, [2**16] * 3, [40] * 3, [1] * 3],
    "width": [[0] * 3, [2**32 - 1] * 3, [2**16] * 3],
}


@pytest.mark.parametrize(("name", "column"), [(name, column) for name in HOSTILE for column in HOSTILE[name]])
def test_a_hostile_index_is_refused(tmp_path: Path, name: str, column: list[int]) -> None:
    pack = HandMade(tmp_path / "pack", mode="decoded" if name in ("height", "width") else "original")
    pack.write({name: column})
    refuse(tmp_path / "pack")


def test_pixels_of_no_height_or_width_are_refused(tmp_path: Path) -> None:
    for size in ({"height": [0] * 3}, {"width": [0] * 3}, {"height": [0] * 3, "width": [0] * 3}):
        HandMade(tmp_path / "pack", mode="decoded").write({"length": [0] * 3, **size})
        refuse(tmp_path / "pack")


def refuse(pack: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as refused:
            opened(pack)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert str(pack) in str(refused.value)
    assert peak < 2**20  # of a pack of 3 kB


@pytest.mark.parametrize("field", ["count", "names"])
def test_a_count_that_the_file_cannot_hold_allocates_nothing(tmp_path: Path, field: str) -> None:
    path = Path(HandMade(tmp_path / "pack").write()) / "train.index"
    whole = bytearray(path.read_bytes())
    for value in (2**31, 2**31 + 1, 2**40, HUGE, 4, 0):
        struct.pack_into("<Q", whole, 16 if field == "count" else 24, value)
        path.write_bytes(whole)
        refuse(tmp_path / "pack")


MANIFESTS: list[dict[str, Any]] = [
    {"splits": None}, {"splits": 5}, {"splits": []}, {"splits": {}}, {"splits": {"val": {}}}, {"splits": {"train": 1}},
    {"classes": None}, {"classes": 5}, {"classes": "ab"}, {"classes": [1, 2]}, {"classes": ["a"]}, {"classes": {}},
    {"fingerprint": None}, {"fingerprint": 7}, {"fingerprint": "0" * 32}, {"mode": None}, {"mode": "decoded"},
    {"mode": "resized"}, {"version": 3}, {"version": "1"}, {"format": "zip"},
]  # fmt: skip


@pytest.mark.parametrize("change", MANIFESTS, ids=str)
def test_a_manifest_that_is_wrong_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    HandMade(tmp_path / "pack").write(manifest=change)
    refuse(tmp_path / "pack")


@pytest.mark.parametrize("count", [-1, 0, 2**62 + 1, 2**70, 1e400, "x", None, [], {}])
def test_a_shard_of_a_wrong_size_is_refused(tmp_path: Path, count: object) -> None:
    shards = [{"name": "train-00000.data", "bytes": count}]
    HandMade(tmp_path / "pack").write(manifest={"splits": {"train": {"index": "train.index", "shards": shards}}})
    refuse(tmp_path / "pack")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ".", "", "a/b", ".hidden", "no\0thing", "absent"])
@pytest.mark.parametrize("what", ["index", "shard"])
def test_files_outside_the_pack_are_not_read(tmp_path: Path, what: str, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    index, shard = (name, "train-00000.data") if what == "index" else ("train.index", name)
    entry = {"index": index, "shards": [{"name": shard, "bytes": 6}]}
    HandMade(tmp_path / "pack").write(manifest={"splits": {"train": entry}})
    refuse(tmp_path / "pack")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 9999]
)
def test_what_is_no_manifest_is_said(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "pack.json").write_bytes(text)
    with pytest.raises(DataError, match="is not a pack manifest of a version up to 2"):
        read_manifest(open_store(str(tmp_path)))


@pytest.mark.parametrize("name", ["pack.json", "train.index"])
def test_a_flipped_bit_in_manifest_or_index_changes_nothing_or_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "pack"
    HandMade(folder).write()
    before, path = contents(opened(folder)), folder / name
    whole, refused = path.read_bytes(), []
    for bit in range(0, 8 * len(whole), 5):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            found = contents(opened(folder))
        except DataError as error:
            refused.append(str(error))
        else:
            assert found == before
    assert len(refused) > 0.5 * 8 * len(whole) / 5
    assert not any("\n" in text for text in refused)


@pytest.mark.parametrize("size", [0, 1, -1, +1])
def test_a_shard_of_another_size_is_refused(folder: Path, tmp_path: Path, size: int) -> None:
    packed(folder, tmp_path / "pack")
    shard = tmp_path / "pack" / "train-00000.data"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:size] if size in (0, 1) else (whole + b"x")[: len(whole) + size])
    refuse_one_line(tmp_path / "pack", "should have")
    shard.unlink()
    refuse_one_line(tmp_path / "pack", "has no")


def refuse_one_line(pack: Path, text: str) -> None:
    with pytest.raises(DataError, match=text) as refused:
        opened(pack)
    assert "\n" not in str(refused.value)


def test_unpacking_finds_a_flipped_bit_in_a_shard(folder: Path, tmp_path: Path) -> None:
    pack = packed(folder, tmp_path / "pack")
    shard = tmp_path / "pack" / "train-00000.data"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match=f"'{pack.train.names[-1]}' does not match its digest"):
        list(unpack(opened(tmp_path / "pack"), tmp_path / "back"))


@pytest.mark.parametrize("name", ["../out", "/tmp/flatout-out", "train/../../out", "link/out", "no\0thing"])
def test_names_that_lead_out_are_not_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "link").symlink_to(tmp_path)
    pack = opened(Path(HandMade(tmp_path / "pack", names=("train/a/0", name)).write()))
    with pytest.raises(DataError, match="leads out of"):
        list(unpack(pack, tmp_path / "back"))
    assert not (tmp_path / "out").exists()
    assert not Path("/tmp/flatout-out").exists()


@pytest.mark.parametrize("name", ["", ".", "train/a/0/x", "x" * 256])
def test_names_that_cannot_be_files_are_said(tmp_path: Path, name: str) -> None:
    pack = opened(Path(HandMade(tmp_path / "pack", names=("train/a/0", name)).write()))
    with pytest.raises(NoSpace, match="cannot write") as refused:
        list(unpack(pack, tmp_path / "back"))
    assert "\n" not in str(refused.value)


# --- where a pack may be written --------------------------------------------------------------------------------------


def test_a_second_pack_into_the_same_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    packed(folder, tmp_path / "pack")
    before = {path.name: path.read_bytes() for path in (tmp_path / "pack").iterdir()}
    for mode in ("original", "decoded"):
        with pytest.raises(DataError, match="already holds a pack"):
            packed(folder, tmp_path / "pack", mode=mode)
    assert {path.name: path.read_bytes() for path in (tmp_path / "pack").iterdir()} == before


def test_an_unfinished_pack_of_other_data_is_not_mixed_in(folder: Path, tmp_path: Path) -> None:
    unfinished = write_pack(opened(folder), tmp_path / "pack", PackOptions(shard_bytes=2000))
    next(unfinished)
    unfinished.close()
    for options in (PackOptions(shard_bytes=3000), PackOptions("resized", shard_bytes=2000)):
        with pytest.raises(DataError, match="unfinished one of other data"):
            next(write_pack(opened(folder), tmp_path / "pack", options))
    other = write_files(tmp_path / "other", files(6))
    with pytest.raises(DataError, match="unfinished one of other data"):
        next(write_pack(opened(other), tmp_path / "pack", PackOptions(shard_bytes=2000)))
    assert contents(packed(folder, tmp_path / "pack", shard_bytes=2000)) == contents(opened(folder))


def test_a_folder_that_cannot_be_written_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for target in (tmp_path / "file", tmp_path / "file" / "pack"):
        with pytest.raises(NoSpace, match="cannot write") as refused:
            packed(folder, target)
        assert "\n" not in str(refused.value)


def test_maps_are_shared_by_the_samples_of_a_shard(folder: Path, tmp_path: Path) -> None:
    reader = packed(folder, tmp_path / "pack").train.reader
    assert isinstance(reader, PackReader)
    first, last = reader.locate(np.array([0, 11]))
    assert isinstance(first, memoryview)
    assert isinstance(last, memoryview)
    assert first.obj is last.obj
    assert first.readonly
