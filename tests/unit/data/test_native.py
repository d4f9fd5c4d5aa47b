"""The compiled loader against a Pillow-only reference of the same contract: equal to the byte, or "not for me"."""

import errno
import io
import math
import mmap
import os
import random
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

_native = pytest.importorskip("flatout.data.pixels._native", reason="the optional extension is not built")

COLUMNS = 27
NOT_FOR_ME = 1
Row = NDArray[np.float64]


# --- the reference -----------------------------------------------------------------------------------------------


def reference_box(row: Row, width: int, height: int) -> tuple[int, int, int, int]:
    if row[0] == 0:
        side = max(1, round(min(width, height) * float(row[1])))
        return (width - side) // 2, (height - side) // 2, side, side
    root = math.sqrt(width * height)
    for k in range(10):
        w, h = round(float(row[6 + k]) * root), round(float(row[16 + k]) * root)
        if 0 < w <= width and 0 < h <= height:
            x, y = math.floor(row[2] * (width - w + 1)), math.floor(row[3] * (height - h + 1))
            return min(x, width - w), min(y, height - h), w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = min(height, round(width / 0.75))
    elif width / height > 4 / 3:
        w = min(width, round(height * (4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h


def reference(image: Image.Image, row: Row, size: int, fill: int) -> NDArray[np.uint8]:
    x, y, w, h = reference_box(row, image.width, image.height)
    resized = np.asarray(image.crop((x, y, x + w, y + h)).resize((size, size), Image.Resampling.BILINEAR))
    dx, dy = int(row[4]), int(row[5])
    padded = np.full((3 * size, 3 * size, 3), fill, np.uint8)
    padded[size : 2 * size, size : 2 * size] = resized
    shifted = padded[size + dy : 2 * size + dy, size + dx : 2 * size + dx]
    return (shifted[:, ::-1] if row[26] else shifted).transpose(2, 0, 1)


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


# --- making pictures and geometries ------------------------------------------------------------------------------


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth colours with noise on top: any error in chroma upsampling or rounding shows."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return Image.fromarray(np.clip(smooth + rng.integers(-40, 41, smooth.shape), 0, 255).astype(np.uint8))


def encode(image: Image.Image, subsampling: str = "420", **options: object) -> bytes:
    if subsampling in ("440", "411"):  # Pillow does not write these
        return simplejpeg.encode_jpeg(np.asarray(image), quality=90, colorsubsampling=subsampling)
    if subsampling == "grey":
        image = image.convert("L")
        subsampling = "444"
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **{"quality": 90, "subsampling": ":".join(subsampling), **options})
    return buffer.getvalue()


def centre(fraction: float = 1.0, dx: float = 0, dy: float = 0, flip: int = 0) -> Row:
    row = np.zeros(COLUMNS)
    row[[0, 1, 4, 5, 26]] = 0, fraction, dx, dy, flip
    return row


def random_row(rng: random.Random, size: int) -> Row:
    row = np.zeros(COLUMNS)
    row[0] = rng.random() < 0.8
    row[1] = rng.choice([1.0, 0.875, rng.random()])
    row[2:4] = rng.random(), rng.random()
    if rng.random() < 0.3:
        row[4:6] = rng.randint(-size, size), rng.randint(-min(4, size), min(4, size))
    smallest = rng.choice([0.001, 0.08, 0.5, 2.0])  # the last never fits: the fall-back box
    for k in range(10):
        area, ratio = rng.uniform(smallest, 1.0), math.exp(rng.uniform(-0.29, 0.29))
        row[6 + k], row[16 + k] = math.sqrt(area * ratio), math.sqrt(area / ratio)
    row[26] = rng.random() < 0.5
    return row


def load(
    sources: list[object], rows: list[Row], size: int, raw_shapes: NDArray[np.int32] | None = None, fill: int = 0
) -> tuple[NDArray[np.uint8], list[int]]:
    out = np.full((len(sources), 3, size, size), 77, np.uint8)
    status = np.full(len(sources), 99, np.int32)
    _native.load_slice(sources, raw_shapes, np.stack(rows), size, fill, out, status)
    return out, status.tolist()


def assert_equal_to_pillow(data: bytes, rows: list[Row], size: int, fill: int = 0) -> None:
    image = decode(data)
    out, status = load([data] * len(rows), rows, size, fill=fill)
    assert status == [0] * len(rows)
    for row, pixels in zip(rows, out, strict=True):
        wanted = reference(image, row, size, fill)
        assert np.array_equal(pixels, wanted), f"box {reference_box(row, *image.size)} of {image.size} to {size}"


# --- equality with Pillow ----------------------------------------------------------------------------------------

SIZES = [
    (1, 1),
    (1, 7),
    (7, 1),
    (3, 5),
    (8, 8),
    (16, 16),
    (17, 33),
    (33, 17),
    (64, 64),
    (65, 130),
    (130, 65),
    (100, 101),
]
LARGE = [(500, 375), (639, 481)]
KINDS: list[dict[str, object]] = [
    {"subsampling": "444"},
    {"subsampling": "422"},
    {"subsampling": "420"},
    {"subsampling": "440"},
    {"subsampling": "411"},
    {"subsampling": "grey"},
    {"subsampling": "420", "progressive": True},
    {"subsampling": "444", "progressive": True, "quality": 60},
    {"subsampling": "grey", "progressive": True},
    {"subsampling": "420", "optimize": True, "quality": 30},
    {"subsampling": "420", "quality": 100},
    {"subsampling": "420", "restart_marker_rows": 1},
    {"subsampling": "422", "restart_marker_blocks": 3},
    {"subsampling": "444", "keep_rgb": True},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: "-".join(map(str, options.values())))
def test_every_kind_of_jpeg_equals_pillow(options: dict[str, object]) -> None:
    rng = random.Random(str(options))
    for seed, (width, height) in enumerate(SIZES + LARGE):
        data = encode(picture(width, height, seed), **options)
        size = rng.choice([1, 2, 13, 32, 64, 97])
        rows = [random_row(rng, size) for _ in range(8 if (width, height) in LARGE else 16)]
        assert_equal_to_pillow(data, [centre(), *rows], size, fill=rng.randrange(256))


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "grey"])
def test_every_offset_of_a_small_box(subsampling: str) -> None:
    """One-pixel-high and -wide boxes at each offset of two MCUs: the upsampling context at every edge of a crop."""
    image = picture(150, 90, 1)
    data = encode(image, subsampling)
    pixels = decode(data)
    rows = []
    for x, y in [(i, 70) for i in range(150)] + [(140, i) for i in range(90)]:
        row = np.zeros(COLUMNS)
        row[0], row[2], row[3] = 1, (x + 0.5) / 150, (y + 0.5) / 90
        row[6:26] = 1 / math.sqrt(150 * 90)
        rows.append(row)
    out, status = load([data] * len(rows), rows, 1)
    assert set(status) == {0}
    expected = np.stack([reference(pixels, row, 1, 0) for row in rows])
    assert np.array_equal(out, expected)


def test_random_resized_crop_at_full_size_equals_pillow() -> None:
    rng = random.Random(5)
    for seed, (width, height) in enumerate([(500, 375), (375, 500), (640, 480), (224, 300), (1000, 64)]):
        data = encode(picture(width, height, seed), "420", quality=95)
        assert_equal_to_pillow(data, [centre(0.875), *(random_row(rng, 224) for _ in range(10))], 224)


@settings(max_examples=150, deadline=None)
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    size=st.integers(1, 80),
    fill=st.integers(0, 255),
    seed=st.integers(0, 2**32),
)
def test_decoded_pixels_equal_pillow(width: int, height: int, size: int, fill: int, seed: int) -> None:
    image = picture(width, height, seed)
    rows = [centre(), *(random_row(random.Random(seed + i), size) for i in range(4))]
    shapes = np.tile(np.array([[height, width]], np.int32), (len(rows), 1))
    out, status = load([image.tobytes()] * len(rows), rows, size, shapes, fill)
    assert set(status) == {0}
    for row, pixels in zip(rows, out, strict=True):
        assert np.array_equal(pixels, reference(image, row, size, fill))


def test_extreme_reductions_equal_pillow_or_are_declined() -> None:
    image = Image.fromarray(np.full((3, 5000, 3), 255, np.uint8))
    for size in (1, 2, 3, 4, 5):
        row = np.zeros(COLUMNS)  # nothing fits: the whole height, 4:3
        row[0] = 1
        for source in (image, image.transpose(Image.Transpose.ROTATE_90)):
            shape = np.array([[source.height, source.width]], np.int32)
            full = row.copy()
            root = math.sqrt(source.width * source.height)
            full[6:16], full[16:26] = source.width / root, source.height / root
            for geometry in (row, full):
                out, status = load([source.tobytes()], [geometry], size, shape)
                assert status[0] in (0, NOT_FOR_ME)
                if status == [0]:
                    assert np.array_equal(out[0], reference(source, geometry, size, 0))


@pytest.mark.parametrize("flip", [0, 1])
def test_shift_and_flip_of_the_identity(flip: int) -> None:
    image = picture(64, 64, 3)
    data = encode(image)
    rows = [centre(1.0, dx, dy, flip) for dx in (-64, -63, -4, 0, 4, 63, 64) for dy in (-64, -4, 0, 4, 64)]
    assert_equal_to_pillow(data, rows, 64, fill=9)
    beyond, _ = load([data], [centre(1.0, -9999, 70, flip)], 64, fill=9)
    assert (beyond == 9).all()


@pytest.mark.parametrize("flip", [0, 1])
def test_every_margin_of_every_small_size(flip: int) -> None:
    for size in range(1, 68):
        image = picture(size, size, size)
        rows = [centre(1.0, dx, dy, flip) for dx in range(-10, 11) for dy in (-1, 2)]
        shapes = np.full((len(rows), 2), size, np.int32)
        out, _ = load([image.tobytes()] * len(rows), rows, size, shapes, fill=7)
        expected = np.stack([reference(image, np.clip(row, -size, size), size, 7) for row in rows])
        assert np.array_equal(out, expected), size


# --- sources, buffers and times ----------------------------------------------------------------------------------


def test_files_and_bytes_mix_and_others_are_left_alone(tmp_path: Path) -> None:
    data = encode(picture(50, 40, 0))
    surrogate = os.fsdecode(bytes(tmp_path) + b"/\xff.jpg")
    Path(surrogate).write_bytes(data)
    sources = [
        surrogate,
        data,
        bytearray(data),
        memoryview(data),
        None,
        str(tmp_path / "absent.jpg"),
        str(tmp_path),
        "",
    ]
    out, status = load(sources, [centre()] * len(sources), 32)
    assert status == [0, 0, 0, 0, 99, -errno.ENOENT, -errno.EISDIR, -errno.ENOENT]
    wanted = reference(decode(data), centre(), 32, 0)
    assert all(np.array_equal(pixels, wanted) for pixels in out[:4])
    assert (out[4] == 77).all()


def test_stretches_of_buffers_are_the_files_that_lie_there() -> None:
    files = [encode(picture(70, 50, seed)) for seed in range(5)]
    bases = [memoryview(b"head" + files[0] + files[1]), memoryview(b"".join(files[2:]))]
    which = np.array([0, 0, 1, 1, 1], np.int32)
    lengths = np.array([len(each) for each in files])
    offsets = np.array([4, 4 + lengths[0], 0, lengths[2], lengths[2] + lengths[3]])
    rows = np.array([centre()] * 5)
    expected, _ = load(files, [centre()] * 5, 40)
    out, status = np.zeros((5, 3, 40, 40), np.uint8), np.ones(5, np.int32)
    _native.load_slice((bases, which, offsets, lengths), None, rows, 40, 0, out, status)
    assert status.tolist() == [0] * 5
    assert np.array_equal(out, expected)
    lengths[4] += 1000  # of a file that became shorter since: what is left of it is judged like any other bytes
    offsets[0] = 10**15
    _native.load_slice((bases, which, offsets, lengths), None, rows, 40, 0, out, status)
    assert status.tolist() == [1, 0, 0, 0, 0]
    for wrong in (np.array([0, 0, 1, 1, 2], np.int32), np.array([0, 0, 1, 1, -1], np.int32)):
        with pytest.raises(ValueError, match="extent 4 lies in none"):
            _native.load_slice((bases, wrong, offsets, lengths), None, rows, 40, 0, out, status)
    with pytest.raises(ValueError, match="extent 0 lies in none"):
        _native.load_slice((bases, which, -offsets, lengths), None, rows, 40, 0, out, status)
    with pytest.raises(TypeError, match="lengths has items of format i"):
        _native.load_slice((bases, which, offsets, lengths.astype(np.int32)), None, rows, 40, 0, out, status)


def test_times_and_bytes_read(tmp_path: Path) -> None:
    data = encode(picture(200, 200, 0))
    (tmp_path / "a.jpg").write_bytes(data)
    out, status = np.empty((4, 3, 64, 64), np.uint8), np.zeros(4, np.int32)
    sources = [str(tmp_path / "a.jpg"), str(tmp_path / "a.jpg"), data, b"left to Pillow, which counts what it reads"]
    fetch, decode_seconds, augment, bytes_read = _native.load_slice(
        sources, None, np.stack([centre()] * 4), 64, 0, out, status
    )
    assert bytes_read == 3 * len(data)
    assert fetch > 0
    assert decode_seconds > 0
    assert augment > 0
    pixels, shape = np.zeros((200, 200, 3), np.uint8), np.array([[200, 200]], np.int32)
    decoded = _native.load_slice([pixels.tobytes()], shape, np.stack([centre()]), 64, 0, out[:1], status[:1])
    assert decoded[3] == 0, "pixels from a cache were read when they were decoded"


# --- folders -----------------------------------------------------------------------------------------------------


def test_files_of_a_folder_are_opened_by_their_names_in_it(tmp_path: Path) -> None:
    files = [encode(picture(70, 50, seed)) for seed in range(3)]
    for number, data in enumerate(files):
        (tmp_path / "sub").mkdir(exist_ok=True)
        (tmp_path / "sub" / f"{number}.jpg").write_bytes(data)
    os.mkfifo(tmp_path / "fifo")
    named = ["sub/0.jpg", "sub/1.jpg", "sub/2.jpg", "sub", "gone", "fifo"]
    names = b"".join(os.fsencode(name) + b"\0" for name in named)
    offsets = np.array([names.index(os.fsencode(name) + b"\0") for name in named])
    offsets[3] = names.index(b"sub\0")
    # as listed; since grown; since shrunk
    lengths = np.array([len(files[0]), len(files[1]) - 5, len(files[2]) + 5, 10, 10, 10])
    out, status = np.zeros((6, 3, 40, 40), np.uint8), np.full(6, 99, np.int32)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        sources = ([(folder, names)], np.zeros(6, np.int32), offsets, lengths)
        _native.load_slice(sources, None, np.array([centre()] * 6), 40, 0, out, status)
        assert status.tolist() == [0, 0, 0, -errno.EISDIR, -errno.ENOENT, NOT_FOR_ME]
        assert np.array_equal(out[:3], load(files, [centre()] * 3, 40)[0])
        for wrong in (len(names), 10**15):
            offsets[0] = wrong
            with pytest.raises(ValueError, match="extent 0 is no name"):
                _native.load_slice(sources, None, np.array([centre()] * 6), 40, 0, out, status)
        sources = ([(folder, b"no end")], np.zeros(1, np.int32), np.zeros(1, np.int64), lengths[:1])
        with pytest.raises(ValueError, match="extent 0 is no name"):
            _native.load_slice(sources, None, np.array([centre()]), 40, 0, out[:1], status[:1])
    finally:
        os.close(folder)


# --- an arena ----------------------------------------------------------------------------------------------------


def make_arena(
    rows: int, capacity: int, file: object = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], object]:
    return np.zeros(capacity, np.uint8), np.zeros((rows, 2), np.int64), np.zeros(2, np.int64), file


def kept_picture(arena: tuple, row: int) -> NDArray[np.uint8] | None:  # type: ignore[type-arg]
    """Whole, of an arena that may have it as planes: then by crops of 16 x 16 of it, each without a resize."""
    pixels, index, _, _ = arena
    end, (height, width) = int(index[row][0]), index[row : row + 1].view(np.int32)[0, 2:].tolist()
    if end <= 0:
        return None
    if width > 0:
        return pixels[end - 3 * height * width : end].reshape(height, width, 3)
    kept = pixels[end - planes_bytes(height, -width) : end]
    places = [(x, y) for y in range(height - 15) for x in range(-width - 15) if (x % 13, y % 11) == (0, 0)]
    places += [(-width - 16, y) for _, y in places] + [(x, height - 16) for x, _ in places]
    places += [(-width - 16, height - 16)]
    rows = [box_row(x, y, 16, -width, height) for x, y in places]
    out, status = np.zeros((len(rows), 3, 16, 16), np.uint8), np.zeros(len(rows), np.int32)
    shapes = np.array([[height, width]] * len(rows), np.int32)
    _native.load_slice([kept] * len(rows), shapes, np.stack(rows), 16, 0, out, status)
    assert not status.any()
    whole = np.zeros((height, -width, 3), np.uint8)
    for (x, y), crop in zip(places, out, strict=True):
        whole[y : y + 16, x : x + 16] = crop.transpose(1, 2, 0)
    return whole


def planes_bytes(height: int, width: int) -> int:
    """Of 4:2:0 in whole blocks of 8."""

    def blocks(samples: int) -> int:
        return (samples + 7) // 8 * 8

    return blocks(height) * blocks(width) + 2 * blocks((height + 1) // 2) * blocks((width + 1) // 2)


def box_row(x: int, y: int, side: int, width: int, height: int) -> Row:
    row = np.zeros(COLUMNS)
    row[[0, 2, 3]] = 1, min(1, (x + 0.5) / (width - side + 1)), min(1, (y + 0.5) / (height - side + 1))
    row[6:26] = side / math.sqrt(width * height)
    return row


def load_and_keep(
    sources: list[object], rows: list[Row], size: int, arena: object, arena_rows: list[int]
) -> tuple[NDArray[np.uint8], list[int]]:
    out, status = np.full((len(sources), 3, size, size), 77, np.uint8), np.full(len(sources), 99, np.int32)
    keep = (arena, np.array(arena_rows, np.int64))
    _native.load_slice(sources, None, np.stack(rows), size, 0, out, status, keep)
    return out, status.tolist()


@pytest.mark.parametrize("on_disk", [False, True])
def test_kept_pictures_are_whole_and_crops_are_what_they_would_have_been(tmp_path: Path, on_disk: bool) -> None:
    kinds = [{}, {"subsampling": "444"}, {"subsampling": "grey"}, {"progressive": True}, {"restart_marker_rows": 1}]
    files: list[object] = [encode(picture(90 + 13 * i, 140 - 9 * i, i), **kind) for i, kind in enumerate(kinds)]
    rng = random.Random(5)
    rows = [random_row(rng, 48) for _ in files]
    arena = make_arena(9, 10**6)
    if on_disk:
        (tmp_path / "pixels").write_bytes(bytes(10**6))
        arena = (np.memmap(tmp_path / "pixels", np.uint8, "r+"), *arena[1:3], os.open(tmp_path / "pixels", os.O_RDWR))
    expected, _ = load(files, rows, 48)
    for _ in range(2):  # the second time they are there already
        out, status = load_and_keep(files, rows, 48, arena, [8, 3, 5, -1, 0])
        assert status == [0] * 5
        assert np.array_equal(out, expected)
        for row, data in zip([8, 3, 5, 0], [files[i] for i in (0, 1, 2, 4)], strict=True):
            assert isinstance(data, bytes)
            assert np.array_equal(kept_picture(arena, row), np.asarray(decode(data)))
        assert [row for row in range(9) if kept_picture(arena, row) is not None] == [0, 3, 5, 8]
        sizes = [planes_bytes(140, 90), 3 * 103 * 131, 3 * 116 * 122, planes_bytes(104, 142)]
        assert arena[2][0] == sum(sizes)


@pytest.mark.parametrize("size", [8, 31, 48, 70])
def test_crops_of_kept_planes_are_those_of_the_file(size: int) -> None:
    """Odd sizes, crops at every edge, wide and narrow, resized or not: chroma is upsampled as libjpeg does it."""
    rng = random.Random(size)
    sizes = [(5, 40), (17, 33), (33, 17), (64, 64), (65, 63), (70, 70), (90, 131), (200, 48), (131, 250)]
    for number, (width, height) in enumerate(sizes):
        data = encode(picture(width, height, number), progressive=number % 3 == 2)
        rows = [random_row(rng, size) for _ in range(24)]
        rows += [box_row(x, y, min(size, width, height), width, height) for x in (0, 1, 2) for y in (0, 1)]
        expected, _ = load([data] * len(rows), rows, size)
        arena = make_arena(1, 10**6)
        first, status = load_and_keep([data], rows[:1], size, arena, [0])
        kept, end = arena[1][:1].view(np.int32)[0, 2:], int(arena[1][0, 0])
        length = planes_bytes(height, width)
        planes = length < 3 * width * height
        assert (status, kept.tolist()) == ([0], [height, -width if planes else width])
        assert np.array_equal(first, expected[:1])
        shapes = np.array([kept.tolist()] * len(rows), np.int32)
        exact = arena[0][end - (length if planes else 3 * width * height) : end].copy()
        out, _ = load([exact] * len(rows), rows, size, shapes)
        assert np.array_equal(out, expected), (width, height)


def test_planes_of_another_size_or_of_other_colours_are_not_taken() -> None:
    assert _native.kept_bytes(encode(picture(64, 64, 1))) == planes_bytes(64, 64)
    assert _native.kept_bytes(encode(picture(64, 64, 1), "422")) == 3 * 64 * 64
    assert _native.kept_bytes(encode(picture(64, 64, 1), "grey")) == 3 * 64 * 64
    assert _native.kept_bytes(encode(picture(9, 7, 1))) == 3 * 9 * 7  # whole blocks would be more
    turned = Image.Exif()
    turned[0x0112] = 6
    assert _native.kept_bytes(encode(picture(64, 64, 1), exif=turned.tobytes())) == 3 * 64 * 64  # Pillow's to keep
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    plain = encode(picture(64, 64, 1))
    jfif = 4 + int.from_bytes(plain[4:6], "big")
    for transform, kept in ((b"\0", 3 * 64 * 64), (b"\1", planes_bytes(64, 64))):
        assert _native.kept_bytes(plain[:jfif] + adobe + transform + plain[jfif:]) == kept
    assert _native.kept_bytes(b"\x89PNG") is None
    for shape in ([64, -48], [48, -64], [64, 64], [-64, -64], [64, -(2**31)], [2**31 - 1, -(2**31)]):
        data = np.zeros(planes_bytes(64, 64), np.uint8)
        assert load([data], [centre()], 32, np.array([shape], np.int32))[1] == [NOT_FOR_ME]


def test_what_finds_no_room_is_only_cropped() -> None:
    files: list[object] = [encode(picture(40, 30, seed)) for seed in range(4)]
    arena = make_arena(4, 2 * planes_bytes(30, 40) + 100)
    out, status = load_and_keep(files, [centre()] * 4, 24, arena, [0, 1, 2, 3])
    assert status == [0] * 4
    assert np.array_equal(out, load(files, [centre()] * 4, 24)[0])
    assert [kept_picture(arena, row) is not None for row in range(4)] == [True, True, False, False]
    assert arena[1][2:].tolist() == [[0, 0], [0, 0]]


def test_a_picture_that_is_damaged_below_the_crop_is_neither_cropped_nor_kept() -> None:
    """Whether it is left to Pillow, which may refuse it, must not depend on the crop."""
    data = bytearray(encode(picture(200, 200, 3), restart_marker_rows=1))
    at = data.rindex(b"\xff\xd5")  # of one of the last rows: its data becomes another marker's
    data[at + 1] = 0xD0
    upper = np.zeros(COLUMNS)
    upper[[0, 2, 3]] = 1, 0.5, 0.0
    upper[6:26] = 0.2
    _, plain_status = load([bytes(data)] * 2, [upper, centre()], 32)
    arena = make_arena(2, 10**6)
    _, status = load_and_keep([bytes(data)] * 2, [upper, centre()], 32, arena, [0, 1])
    assert status == plain_status == [NOT_FOR_ME] * 2
    assert (arena[1].tolist(), arena[2].tolist()) == ([[0, 0], [0, 0]], [0, 0])


def test_a_full_disk_costs_the_picture_nothing(tmp_path: Path) -> None:
    (tmp_path / "pixels").write_bytes(bytes(10**5))
    arena = (*make_arena(1, 10**5)[:3], os.open(tmp_path / "pixels", os.O_RDONLY))  # refuses to be written
    data: list[object] = [encode(picture(40, 30, 0))]
    out, status = load_and_keep(data, [centre()], 24, arena, [0])
    assert status == [0]
    assert np.array_equal(out, load(data, [centre()], 24)[0])
    assert (arena[1].tolist(), arena[2].tolist()) == ([[0, 0]], [0, 0])
    assert not _native.keep(arena, 0, np.zeros((3, 4, 3), np.uint8))


def test_threads_fill_an_arena_without_a_gap_or_a_picture_twice() -> None:
    files: list[object] = [encode(picture(30 + i % 5, 40, i)) for i in range(60)]
    wanted, _ = load(files, [centre()] * 60, 24)
    arena = make_arena(60, sum(planes_bytes(40, decode(data).width) for data in files))  # type: ignore[arg-type]
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(60).tolist()
        start.wait()
        out, _ = load_and_keep([files[i] for i in order], [centre()] * 60, 24, arena, order)
        wrong.extend(row for slot, row in enumerate(order) if not np.array_equal(out[slot], wanted[row]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert arena[2][0] == len(arena[0])
    for row, data in enumerate(files):
        assert np.array_equal(kept_picture(arena, row), np.asarray(decode(data)))  # type: ignore[arg-type]


def test_pixels_are_kept_once() -> None:
    arena = make_arena(3, 100)
    first, second = np.arange(36, dtype=np.uint8).reshape(3, 4, 3), np.full((2, 2, 3), 9, np.uint8)
    assert _native.keep(arena, 2, first)
    assert not _native.keep(arena, 2, second)
    assert not _native.keep(arena, 3, second)
    assert not _native.keep(arena, -1, second)
    assert not _native.keep(arena, 1, np.zeros((5, 5, 3), np.uint8))
    assert np.array_equal(kept_picture(arena, 2), first)
    for wrong in (np.zeros((3, 4), np.uint8), np.zeros((3, 4, 4), np.uint8)):
        with pytest.raises(ValueError, match="shape"):
            _native.keep(arena, 0, wrong)


def test_an_arena_takes_no_more_memory_than_its_pictures_and_one_huge_page() -> None:
    mapping = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    arena = (memoryview(mapping), np.zeros((40, 2), np.int64), np.zeros(2, np.int64), None)
    pixels = np.ones((500, 400, 3), np.uint8)
    for small_stretches in (0, 255):  # huge pages as they come; none for now
        arena[2][1] = small_stretches
        before, used = psutil.Process().memory_info().rss, int(arena[2][0])
        for row in range(20):
            assert _native.keep(arena, row + (20 if small_stretches else 0), pixels)
        taken = psutil.Process().memory_info().rss - before
        assert arena[2][0] - used == 20 * pixels.nbytes
        assert taken < 20 * pixels.nbytes + (3 << 20)
    assert 255 - arena[2][1] in (5, 6)  # one less for each 2 MiB that begin in 12 MB


def test_bad_arenas_are_named() -> None:
    good, data = make_arena(1, 100), encode(picture(9, 9, 0))
    for arena, rows, error in [
        (good[:3], [0], TypeError),
        (None, [0], TypeError),
        ((good[0].astype(np.int16), *good[1:]), [0], TypeError),
        ((good[0], good[1].astype(np.int32), *good[2:]), [0], TypeError),
        ((*good[:2], np.zeros(1, np.int64), None), [0], ValueError),
        ((*good[:3], "no file"), [0], TypeError),
        (good, [0, 1], ValueError),
    ]:
        with pytest.raises(error):
            load_and_keep([data], [centre()], 8, arena, rows)
    bad_used = (*good[:2], np.array([-5, 0]), None)
    assert load_and_keep([data], [centre()], 8, bad_used, [0])[1] == [0]
    assert kept_picture(bad_used, 0) is None


def test_floats_are_the_normalised_bytes() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 3, 33, 33), np.uint8)
    scale = np.array([0.1, 0.2, 0.3, -1, 0, 7], np.float32)
    wanted = pixels.astype(np.float32) * scale[:3, None, None] + scale[3:, None, None]
    for factors in (scale, scale.astype(np.float64)):
        floats = np.full(pixels.shape, np.nan, np.float32)
        _native.normalize(pixels, floats, factors)
        assert np.array_equal(floats, wanted)


def test_threads_share_nothing() -> None:
    data = [encode(picture(100 + 7 * i, 90, i)) for i in range(8)]
    rng = random.Random(2)
    rows = [random_row(rng, 48) for _ in data]
    wanted, _ = load(list(data), rows, 48)
    results: list[bool] = []

    def work() -> None:
        for _ in range(15):
            out, status = load(list(data), rows, 48)
            results.append(status == [0] * 8 and np.array_equal(out, wanted))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 90


def test_bad_arguments_are_named() -> None:
    data = encode(picture(9, 9, 0))
    good = {
        "sources": [data],
        "raw_shapes": None,
        "geometry": centre()[None],
        "size": 4,
        "fill": 0,
        "out": np.zeros((1, 3, 4, 4), np.uint8),
        "status": np.zeros(1, np.int32),
    }
    _native.load_slice(**good)
    read_only = np.zeros((1, 3, 4, 4), np.uint8)
    read_only.flags.writeable = False
    for name, value, error in [
        ("sources", (data,), TypeError),
        ("sources", [3.5], TypeError),
        ("sources", ["a\0b"], ValueError),
        ("raw_shapes", np.zeros((1, 2), np.int64), TypeError),
        ("geometry", np.zeros((1, 26)), ValueError),
        ("geometry", np.zeros((1, 27), np.float32), TypeError),
        ("geometry", np.full((1, 27), np.nan), ValueError),
        ("geometry", centre(fraction=1.5)[None], ValueError),
        ("geometry", centre(dx=0.5)[None], ValueError),
        ("size", 0, ValueError),
        ("size", 10**9, ValueError),
        ("fill", 256, ValueError),
        ("out", np.zeros((1, 3, 4, 5), np.uint8), ValueError),
        ("out", read_only, ValueError),
        ("out", None, TypeError),
        ("status", np.zeros(2, np.int32), ValueError),
        ("status", None, TypeError),
    ]:
        with pytest.raises(error):
            _native.load_slice(**{**good, name: value})


# --- what is left to Pillow --------------------------------------------------------------------------------------


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def _xmp(text: bytes) -> bytes:
    body = b"http://ns.adobe.com/xap/1.0/\0" + text
    return b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body


def _with_segment(data: bytes, segment: bytes) -> bytes:
    return data[:2] + segment + data[2:]


def _patched_frame(data: bytes, offset: int, value: bytes) -> bytes:
    at = max(data.find(b"\xff\xc0\0\x11"), data.find(b"\xff\xc2\0\x11")) + 4 + offset
    return data[:at] + value + data[at + len(value) :]


IMAGE = picture(70, 50, 4)
PLAIN = encode(IMAGE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"not an image" * 20,
        encode(IMAGE.convert("RGB"))[:-2],
        PLAIN[: len(PLAIN) // 2],
        PLAIN[: len(PLAIN) // 2] + b"\xff\xd9",
        PLAIN + b"trailing rubbish",
        encode(IMAGE, exif=_exif(6)),
        encode(IMAGE, exif=_exif(2)),
        _with_segment(PLAIN, _xmp(b'<a tiff:Orientation="8"/>')),
        _with_segment(PLAIN, _xmp(b"<tiff:Orientation>3</tiff:Orientation>")),
        _with_segment(PLAIN, b"\xff\xe1\0\x10Exif\0\0II*\0\xff\xff\xff\xff"),
        _with_segment(PLAIN, b"\0\0rubbish"),
        _patched_frame(PLAIN, 0, b"\x0c"),
        _patched_frame(PLAIN, 1, b"\xff\xff\xff\xff"),
        _patched_frame(PLAIN, 1, b"\x10\0\x10\0"),
        _patched_frame(PLAIN, 5, b"\x04"),
        _patched_frame(PLAIN, -3, b"\xc9"),
        _patched_frame(PLAIN, -3, b"\xc3"),
    ],
)
def test_not_for_me(data: bytes) -> None:
    out, status = load([data, PLAIN, data], [centre()] * 3, 16)
    assert status == [NOT_FOR_ME, 0, NOT_FOR_ME]
    assert np.array_equal(out[1], reference(decode(PLAIN), centre(), 16, 0))


def test_cmyk_and_other_formats_are_not_for_me() -> None:
    cmyk, png = io.BytesIO(), io.BytesIO()
    IMAGE.convert("CMYK").save(cmyk, "JPEG")
    IMAGE.save(png, "PNG")
    assert load([cmyk.getvalue(), png.getvalue()], [centre()] * 2, 8)[1] == [NOT_FOR_ME] * 2


@pytest.mark.parametrize(
    "data",
    [
        PLAIN + b"\0" * 100,
        PLAIN + b"\r\n \t\0",
        encode(IMAGE, exif=_exif(1)),
        _with_segment(PLAIN, _xmp(b'<a tiff:Orientation="1"/>')),
        encode(IMAGE, comment=b"x" * 3000, icc_profile=b"y" * 200_000),
        PLAIN[:2] + b"\xff\xff" + PLAIN[2:],
    ],
)
def test_harmless_oddities_are_decoded(data: bytes) -> None:
    assert_equal_to_pillow(data, [centre()], 40)


def test_raw_shapes_must_match_the_bytes() -> None:
    pixels = IMAGE.tobytes()
    shapes = np.array([[50, 70], [50, 69], [-50, -70], [0, 70], [2**31 - 1, 2**31 - 1], [50, 70], [0, 0]], np.int32)
    sources = [pixels, pixels, pixels, pixels, pixels, pixels[:-1], PLAIN]
    assert load(sources, [centre()] * 7, 8, shapes)[1] == [0, 1, 1, 1, 1, 1, 0]


def test_damage_gives_a_status_and_never_other_samples_pixels() -> None:
    """Whatever still decodes without a doubt equals Pillow's; the neighbours of a bad sample are untouched."""
    rng = random.Random(6)
    wanted = reference(decode(PLAIN), centre(), 24, 0)
    for data in (PLAIN, encode(IMAGE, progressive=True), encode(IMAGE, restart_marker_blocks=2)):
        for _ in range(300):
            damaged = bytearray(data)
            for _ in range(rng.choice([1, 1, 3, 20])):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            out, status = load([bytes(damaged), PLAIN], [centre()] * 2, 24)
            assert status[0] in (0, NOT_FOR_ME)
            assert status[1] == 0
            assert np.array_equal(out[1], wanted)
            if status[0] == 0:
                assert np.array_equal(out[0], reference(decode(bytes(damaged)), centre(), 24, 0))


def test_grey_with_sampling_factors_equals_pillow() -> None:
    """The factors of a lone component mean nothing, but libjpeg's crop and MCU arithmetic read them."""
    grey = encode(picture(200, 150, 8), "grey")
    at = grey.find(b"\xff\xc0\0\x0b") + 11
    rng = random.Random(8)
    for factors in (b"\x12", b"\x21", b"\x22", b"\x41"):
        odd = grey[:at] + factors + grey[at + 1 :]
        assert_equal_to_pillow(odd, [centre(), *(random_row(rng, 40) for _ in range(20))], 40)


def test_header_size() -> None:
    assert _native.jpeg_size(PLAIN) == (70, 50, 3)
    cmyk = io.BytesIO()
    IMAGE.convert("CMYK").save(cmyk, "JPEG")
    assert _native.jpeg_size(cmyk.getvalue()) == (70, 50, 4)
    assert _native.jpeg_size(encode(IMAGE, "grey")) == (70, 50, 1)
    assert _native.jpeg_size(PLAIN[:-2]) == (70, 50, 3)
    assert _native.jpeg_size(b"\x89PNG") is None
    assert _native.ABI == 9
    assert _native.LIBJPEG_VERSION[0].isdigit()
    assert _native.MAX_PIXELS == 2**26
