"""Feed damaged and hostile bytes to whatever reads bytes from outside: images, pack indexes, pack manifests.

    python tests/fuzz/pack_fuzz.py [COUNT] [SEED]

Anything but a value, DataError or Undecodable is a finding, and so is a crash or memory that grows. The input under
test is kept in a file named on the first line, so that one that kills the process can be looked at.
"""

import faulthandler
import gc
import hashlib
import io
import json
import mmap
import os
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flatout.data.loading import prepare as prepare_module
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.decode import Undecodable, decode_pixels
from flatout.data.pixels.picture_limits import MAX_PIXELS
from flatout.data.pixels.views import SHIPPED
from flatout.data.source.dataset import Split
from flatout.data.source.pack import PackIndex, decode_index, encode_index, open_split, read_manifest
from flatout.data.source.readers import Rows, Source
from flatout.errors import DataError, ObjectMissing, StorageError
from flatout.storage.protocol import Entry, Range

LARGEST_RSS_GROWTH = 14 * MAX_PIXELS  # an image just below the limit is decoded: as CMYK, as RGB, turned and copied
SIDES = (0, 1, 2, 3, 7, 16, 64, 255, 256, 4097, 8192, 8193, 30_000, 65_500, 65_535)
NUMBERS = (0, 1, 2, 3, 4, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
VALUES = (
    None,
    True,
    0,
    -1,
    2**70,
    1e400,
    "",
    "x",
    "../x",
    "/x",
    [],
    {},
    [[]],
    {"train": {}},
    [None],
    ["a"],
    ["a", "b"],
)
_CURRENT_BYTES = 1 << 20


# --- seeds ------------------------------------------------------------------------------------------------------------


def _image(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def image_seeds() -> list[bytes]:
    turned = _image(1, 40, 24)
    exif = turned.getexif()
    exif[0x0112] = 6
    deep = Image.fromarray(np.random.default_rng(2).integers(0, 2**16, (20, 30), np.uint16))
    small = _image(3, 33, 21)
    return [
        _saved(_image(4, 48, 40), "JPEG", quality=90),
        _saved(_image(5, 31, 17), "JPEG", quality=50, progressive=True),
        _saved(_image(6, 40, 40), "JPEG", subsampling=0, restart_marker_blocks=2),
        _saved(_image(7, 64, 9), "JPEG", subsampling=1, optimize=True),
        _saved(_image(8, 25, 25, "L"), "JPEG"),
        _saved(_image(9, 24, 20, "CMYK"), "JPEG"),
        _saved(turned, "JPEG", exif=exif, icc_profile=bytes(300), comment=b"comment"),
        _saved(small, "PNG"),
        _saved(small.convert("P"), "PNG", transparency=1),
        _saved(_image(10, 20, 20, "RGBA"), "PNG"),
        _saved(deep, "PNG"),
        _saved(_image(11, 22, 22, "1"), "PNG"),
        _saved(small.convert("P"), "GIF"),
        _saved(small, "WEBP", quality=60),
        _saved(small, "WEBP", lossless=True),
        _saved(small, "BMP"),
        _saved(small, "TIFF", compression="tiff_lzw"),
        _saved(deep, "TIFF"),
        _saved(small, "PPM"),
    ]


def index_seed(mode: str, count: int) -> tuple[bytes, list[int]]:
    names = tuple(f"train/{'ab'[number % 2]}/{number}.jpg" for number in range(count))
    sides = np.arange(1, count + 1, dtype=np.uint64)
    lengths = 3 * sides * sides if mode == "decoded" else sides + np.uint64(100)
    arrays: dict[str, NDArray[Any]] = {
        "offset": np.cumsum(lengths) - lengths, "length": lengths, "original_length": lengths,
        "name_end": np.cumsum([len(name) for name in names], dtype=np.uint64), "shard": np.zeros(count, np.uint64),
        "label": np.arange(count) % 2, "height": sides if mode == "decoded" else sides * 0,
        "width": sides if mode == "decoded" else sides * 0, "digest": np.zeros(count, "V16"),
    }  # fmt: skip
    return encode_index(PackIndex(mode, arrays, names)), [int(lengths.sum())]


def manifest_seed(mode: str, shard_bytes: int) -> dict[str, Any]:
    shards = [{"name": "train-00000.data", "bytes": shard_bytes}]
    return {
        "format": "flatout-pack", "version": 1, "fingerprint": "0" * 32, "mode": mode, "classes": ["a", "b"],
        "options": {"mode": mode, "short_side": 256}, "splits": {"train": {"index": "train.index", "shards": shards}},
    }  # fmt: skip


# --- mutations --------------------------------------------------------------------------------------------------------


def flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data) + 1) :]


def cut_out(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 16, 200))]


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 16, 200)))


def repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.choice((2, 16, 200))] * rng.choice((1, 3))


BLIND = (flip_bits, flip_bits, set_bytes, truncate, cut_out, insert, repeat)


def edit_header(rng: random.Random, data: bytearray) -> None:
    """Other sides, in a file that is otherwise in order: the CRC of a PNG's header is made right again."""
    width, height = rng.choice(SIDES), rng.choice(SIDES)
    if data.startswith(b"\x89PNG") and len(data) >= 33:
        struct.pack_into(">II", data, 16, width * rng.choice((1, 1, 2**15)), height)
        data[24] = rng.choice((data[24], 1, 2, 4, 8, 16))
        data[25] = rng.choice((data[25], 0, 2, 3, 4, 6))
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    elif data.startswith(b"\xff\xd8"):
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        if 0 <= at < len(data) - 20:
            struct.pack_into(">HH", data, at + 5, height, width)
            data[at + rng.randrange(9, 19)] = rng.choice((0, 1, 3, 4, 0x11, 0x22, 0x44, 0xF1, 0xFF))
    elif len(data) > 40:
        at = rng.randrange(4, 36)
        struct.pack_into(rng.choice(("<I", ">I", "<H", ">H")), data, at, rng.choice(SIDES))


def mutated_image(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    if rng.random() < 0.15:
        other = rng.choice(seeds)
        data = data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    if rng.random() < 0.25:
        edit_header(rng, data)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        rng.choice(BLIND)(rng, data)
    return bytes(data)


def mutated_index(rng: random.Random, seeds: Sequence[tuple[bytes, list[int]]]) -> tuple[bytes, list[int]]:
    """Blindly damaged, or with hostile numbers and a digest that is right."""
    whole, shards = rng.choice(seeds)
    data = bytearray(whole)
    if rng.random() < 0.5:
        rng.choice(BLIND)(rng, data)
    else:
        for _ in range(rng.choice((1, 1, 2, 5))):
            wide = rng.random() < 0.7
            at = rng.randrange(8, len(data) - 8) // 4 * 4 if rng.random() < 0.8 else rng.choice((8, 12, 16, 24))
            number = rng.choice(NUMBERS)
            struct.pack_into("<Q" if wide else "<I", data, at, number if wide else number % 2**32)
    if rng.random() < 0.8 and len(data) > 64:
        data[32:64] = hashlib.sha256(data[64:]).digest()
    return bytes(data), [rng.choice(NUMBERS) % 2**62 for _ in shards] if rng.random() < 0.1 else shards


def mutated_manifest(rng: random.Random, manifest: dict[str, Any]) -> bytes:
    whole = json.loads(json.dumps(manifest))
    if rng.random() < 0.6:
        places = list(_places(whole))
        for holder, key in rng.sample(places, rng.choice((1, 1, 2))):
            if rng.random() < 0.15 and isinstance(holder, dict):
                holder.pop(key, None)
            else:
                holder[key] = rng.choice(VALUES)
        return json.dumps(whole).encode()
    data = bytearray(json.dumps(whole).encode())
    rng.choice(BLIND)(rng, data)
    return bytes(data)


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from _places(value)


# --- what is fed ------------------------------------------------------------------------------------------------------


@dataclass
class MemoryStore:
    """A pack as it would be in a bucket."""

    objects: dict[str, bytes]
    url: str = "memory://pack"

    def entries(self) -> Iterator[Entry]:
        return (Entry(name, len(data)) for name, data in self.objects.items())

    def read_many(self, ranges: Sequence[Range]) -> list[bytes | StorageError]:
        return [self.objects.get(wanted.name, ObjectMissing(f"no {wanted.name!r}")) for wanted in ranges]

    def local_path(self, name: str) -> str | None:
        return None

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class OneSample:
    """A reader of a single sample, as a file or as the pixels of a decoded pack."""

    data: bytes
    shape: tuple[int, int] | None = None

    def locate(self, rows: Rows) -> list[Source | StorageError]:
        return [self.data for _ in rows]

    def shapes(self, rows: Rows) -> NDArray[np.int32] | None:
        return None if self.shape is None else np.array([self.shape] * len(rows), np.int32)


def prepared(reader: OneSample, view: str, seed: int) -> NDArray[np.uint8]:
    """Images of a batch of one by the real path: none where the sample was left out. Both decoders must agree."""
    zero = np.zeros(1, np.int64)
    split = Split(("sample",), zero, np.array([len(reader.data)]), reader, zero)
    recipe = BatchPlan(split, SHIPPED[view], seed, batch_size=1)
    images = prepare(recipe, 0, 0, np.zeros(recipe.shape(0), np.uint8)).images
    compiled = prepare_module.native
    if compiled is not None:
        prepare_module.native = None  # type: ignore[misc]
        try:
            reference = prepare(recipe, 0, 0, np.zeros(recipe.shape(0), np.uint8)).images
        finally:
            prepare_module.native = compiled  # type: ignore[misc]
        assert images.shape == reference.shape, f"{len(images)} samples compiled, {len(reference)} by Pillow"
        assert np.array_equal(images, reference), "other pixels from the compiled decoder"
    return images


def one_line(error: Exception) -> None:
    assert "\n" not in str(error), f"more than one line: {error}"


def feed_image(data: bytes, seed: int) -> str:
    try:
        height, width, channels = decode_pixels(data).shape
    except Undecodable as error:
        one_line(error)
        outcome = "undecodable"
    else:
        outcome = "decoded"
        assert channels == 3, f"{channels} channels"
        assert 0 < height * width <= MAX_PIXELS, f"{width} x {height} pixels"
    left = len(prepared(OneSample(data), ("train-64", "train-224", "eval-64")[seed % 3], seed))
    assert left == (outcome == "decoded"), f"{outcome}, but {left} samples in the batch"
    return outcome


def feed_index(data: bytes, shard_bytes: Sequence[int], seed: int) -> str:
    try:
        index = decode_index(data, shard_bytes, "the index")
    except DataError as error:
        one_line(error)
        return "refused"
    arrays = index.arrays
    assert len(index.names) == len(arrays["offset"])
    for shard, offset, length in zip(arrays["shard"], arrays["offset"], arrays["length"], strict=True):
        assert int(offset) + int(length) <= shard_bytes[shard], "points outside its shard"
    if index.mode == "decoded" and len(index):
        shape = int(arrays["height"][-1]), int(arrays["width"][-1])
        assert len(prepared(OneSample(bytes(int(arrays["length"][-1])), shape), "train-64", seed)) == 1
    return "read"


def feed_manifest(data: bytes, index: bytes) -> str:
    store = MemoryStore({"pack.json": data, "train.index": index})
    try:
        manifest = read_manifest(store)
        assert manifest is not None
        for name in manifest["splits"]:
            open_split(store, manifest, name)
    except DataError as error:
        one_line(error)
        return "refused"
    return "read"


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_growth_bytes: int = 0
    growth_bytes: int = 0


def fuzz(count: int, seed: int = 0, keep: Callable[[bytes], None] = lambda data: None) -> Result:
    """`count` inputs; `keep` is given each before it is fed."""
    rng, images = random.Random(seed), image_seeds()
    indexes = [index_seed(mode, size) for mode in ("original", "decoded", "resized") for size in (1, 6)]
    for data in images:  # the seeds themselves are in order
        assert feed_image(data, 0) == "decoded"
    result, started = Result(), time.monotonic()
    peak_before, before = _peak_rss_bytes(), _rss_bytes()
    for number in range(count):
        kind = ("image", "image", "image", "index", "manifest")[number % 5]
        try:
            if kind == "image":
                data = mutated_image(rng, images)
                keep(data)
                outcome = feed_image(data, number)
            elif kind == "index":
                data, shard_bytes = mutated_index(rng, indexes)
                keep(data)
                outcome = feed_index(data, shard_bytes, number)
            else:
                index, shard_bytes = rng.choice(indexes)
                mode = ("original", "resized", "decoded")[struct.unpack_from("<I", index, 12)[0]]
                data = mutated_manifest(rng, manifest_seed(mode, shard_bytes[0]))
                keep(data)
                outcome = feed_manifest(data, index)
        except Exception as error:  # whatever it is, it is the finding
            outcome = "FINDING"
            result.findings.append(f"{kind} {number} of seed {seed}: {type(error).__name__}: {error}; {data[:60]!r}")
        result.outcomes[f"{kind} {outcome}"] += 1
    gc.collect()
    result.seconds = time.monotonic() - started
    result.peak_growth_bytes, result.growth_bytes = _peak_rss_bytes() - peak_before, _rss_bytes() - before
    if result.peak_growth_bytes > LARGEST_RSS_GROWTH:
        result.findings.append(f"memory grew by {result.peak_growth_bytes} bytes, limit {LARGEST_RSS_GROWTH}")
    return result


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def main() -> int:
    faulthandler.enable()
    count, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 2000, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.NamedTemporaryFile(prefix="flatout-fuzz-", delete=False) as file:
        file.truncate(_CURRENT_BYTES)
        current = mmap.mmap(file.fileno(), _CURRENT_BYTES)
        print(f"input under test: {file.name} (8 bytes of length, then the bytes)", flush=True)

    def keep(data: bytes) -> None:
        current[: 8 + len(data)] = struct.pack("<Q", len(data)) + data

    result = fuzz(count, seed, keep)
    native = "compiled" if prepare_module.native is not None else "not compiled"
    print(
        f"{count} inputs, seed {seed}, decoder {native}: {result.seconds:.1f} s; {dict(sorted(result.outcomes.items()))}"
    )
    print(
        f"memory: peak +{result.peak_growth_bytes / 2**20:.0f} MiB, at the end +{result.growth_bytes / 2**20:.0f} MiB"
    )
    for finding in result.findings[:50]:
        print(finding)
    os.unlink(file.name)  # the process has survived its input
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
