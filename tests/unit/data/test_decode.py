"""One rule from any file to upright RGB pixels, or a reason why not."""

import io
import os
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_datasets import encoded, jpeg, pixels

from flatout.data.pixels import decode
from flatout.data.pixels.decode import Undecodable, decode_pixels
from flatout.data.pixels.picture_limits import MAX_PIXELS

some = settings(max_examples=80, deadline=None)  # a loaded machine is no failure

COLOUR = pixels(3, 30, 21)
GREY = COLOUR[:, :, 0]


def image(mode: str) -> Image.Image:
    return Image.fromarray(COLOUR).convert(mode)


def reason(data: bytes) -> str:
    with pytest.raises(Undecodable) as caught:
        decode_pixels(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_colour_comes_back_as_it_was(kind: str) -> None:
    assert np.array_equal(decode_pixels(encoded(COLOUR, kind)), COLOUR)


def test_webp_comes_back_as_it_was() -> None:
    assert np.array_equal(decode_pixels(encoded(COLOUR, "WEBP", lossless=True)), COLOUR)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP"])
def test_grey_is_three_equal_channels(kind: str) -> None:
    assert np.array_equal(decode_pixels(encoded(GREY, kind)), np.stack([GREY] * 3, axis=2))


def test_alpha_is_dropped() -> None:
    alpha = np.arange(GREY.size, dtype=np.uint8).reshape(GREY.shape)
    with_alpha = np.dstack([COLOUR, alpha])
    assert np.array_equal(decode_pixels(encoded(with_alpha, "PNG")), COLOUR)
    grey_alpha = Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)])
    assert np.array_equal(decode_pixels(encoded(grey_alpha, "PNG")), np.stack([GREY] * 3, axis=2))


@pytest.mark.parametrize("options", [{}, {"transparency": 3}, {"transparency": bytes(range(256))}])
def test_a_palette_is_looked_up(options: dict[str, object]) -> None:
    palette = image("P")
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(decode_pixels(encoded(palette, "PNG", **options)), expected)


def test_one_bit_is_black_and_white() -> None:
    bits = GREY > 128
    decoded = decode_pixels(encoded(Image.fromarray(bits), "PNG"))
    assert np.array_equal(decoded, np.stack([bits * np.uint8(255)] * 3, axis=2))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_upper_eight(kind: str) -> None:
    wide = (GREY.astype(np.uint16) << 8) | 0x00C3
    assert np.array_equal(decode_pixels(encoded(Image.fromarray(wide), kind)), np.stack([GREY] * 3, axis=2))


def test_sixteen_bit_colour_keeps_its_upper_eight() -> None:
    wide = (COLOUR.astype(">u2") << 8) | 0x00C3
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", COLOUR.shape[1], COLOUR.shape[0], 16, 2, 0, 0, 0)
    assert np.array_equal(decode_pixels(png((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))), COLOUR)


def test_cmyk_is_converted() -> None:
    for options in ({"quality": 95}, {"quality": 95, "progressive": True}):
        data = encoded(image("CMYK"), "JPEG", **options)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        assert np.array_equal(decode_pixels(data), expected)
        assert np.abs(decode_pixels(data).astype(int) - COLOUR).mean() < 6


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}, {"optimize": True, "subsampling": "4:2:2"}],
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_gives_the_pixels_that_pillow_gives(mode: str, options: dict[str, object]) -> None:
    data = encoded(image(mode), "JPEG", **options)
    assert np.array_equal(decode_pixels(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_bytes_and_a_view_of_them_are_the_same() -> None:
    data = jpeg(1)
    assert np.array_equal(decode_pixels(memoryview(b"??" + data)[2:]), decode_pixels(data))


def test_the_type_is_read_from_the_content() -> None:
    """The decoder is not even told the name: test_prepare.py has a PNG that is named .JPEG."""
    decoded = [decode_pixels(encoded(COLOUR, kind)) for kind in ("PNG", "BMP")]
    assert np.array_equal(*decoded)


STORED_FROM_UPRIGHT = {
    1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1), 6: lambda a: np.rot90(a), 7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: np.rot90(a, -1),
}  # fmt: skip


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_every_orientation_is_turned_upright(kind: str, orientation: int) -> None:
    stored = np.ascontiguousarray(STORED_FROM_UPRIGHT[orientation](COLOUR))
    options = {"lossless": True} if kind == "WEBP" else {}
    assert np.array_equal(decode_pixels(encoded(stored, kind, exif=exif(orientation), **options)), COLOUR)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_of_a_jpeg_is_turned_upright(orientation: int) -> None:
    stored = np.ascontiguousarray(STORED_FROM_UPRIGHT[orientation](COLOUR))
    decoded = decode_pixels(encoded(stored, "JPEG", exif=exif(orientation), quality=97, subsampling=0))
    assert decoded.shape == COLOUR.shape
    assert np.abs(decoded.astype(int) - COLOUR).max() < 24


def test_an_orientation_behind_long_profiles_counts_too() -> None:
    stored = np.ascontiguousarray(STORED_FROM_UPRIGHT[6](COLOUR))
    plain = encoded(stored, "JPEG", exif=exif(6), quality=97, subsampling=0)
    comment = b"\xff\xed" + struct.pack(">H", 60_000) + b"x" * 59_998
    assert np.array_equal(decode_pixels(plain[:2] + comment * 2 + plain[2:]), decode_pixels(plain))


@pytest.mark.parametrize("tags", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff"])
def test_a_broken_exif_block_does_not_cost_the_image(tags: bytes) -> None:
    plain = encoded(COLOUR, "JPEG", quality=97)
    block = b"\xff\xe1" + struct.pack(">H", len(tags) + 2) + tags
    assert np.array_equal(decode_pixels(plain[:2] + block + plain[2:]), decode_pixels(plain))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.fromarray(pixels(seed, 30, 21)).quantize(16) for seed in (3, 4)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(data)).n_frames == 2
    assert np.array_equal(decode_pixels(data), np.asarray(frames[0].convert("RGB")))


def test_an_empty_file_has_its_own_reason() -> None:
    assert reason(b"") == "empty file"


@pytest.mark.parametrize("data", [b"just text\n", b"<html><body>404</body></html>", bytes(500), b"\xff", b"P", b"RIFF"])
def test_what_is_no_image_is_told_by_its_first_bytes(data: bytes) -> None:
    assert reason(data).startswith("not an image: starts with ")
    assert repr(data[:8]) in reason(data)


def test_no_interpreter_is_started_for_a_file() -> None:
    """Postscript would be handed to another program; it is no image here."""
    assert "not an image" in reason(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "TIFF", "WEBP"])
def test_a_file_cut_in_half_is_broken(kind: str) -> None:
    big = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    data = encoded(big, kind)
    assert reason(data[: len(data) // 2]).startswith(("broken image: ", "not an image: "))


def test_a_progressive_jpeg_cut_in_half_is_broken() -> None:
    data = encoded(pixels(5, 64, 64), "JPEG", progressive=True)
    assert reason(data[: len(data) * 2 // 3]).startswith("broken image: ")


@some
@given(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]), st.data())
def test_damage_gives_pixels_or_a_reason_and_nothing_else(kind: str, data: st.DataObject) -> None:
    good = bytearray(encoded(COLOUR, kind))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_pixels(bytes(good))
    except Undecodable as error:
        assert str(error)  # noqa: PT017
    else:
        assert decoded.dtype == np.uint8
        assert decoded.shape[2] == 3


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def png_of_size(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return png((b"IHDR", header), (b"IDAT", zlib.compress(bytes(5000))), (b"IEND", b""))


def jpeg_of_size(width: int, height: int) -> bytes:
    data = bytearray(jpeg(0))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def gif_of_size(width: int, height: int) -> bytes:
    data = bytearray(encoded(image("P"), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def bmp_of_size(width: int, height: int) -> bytes:
    data = bytearray(encoded(COLOUR, "BMP"))
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


BOMBS = {
    "png": png_of_size(60_000, 60_000), "png just over": png_of_size(8193, 8192), "jpeg": jpeg_of_size(65_500, 65_500),
    "gif": gif_of_size(65_535, 65_535), "bmp": bmp_of_size(50_000, 50_000), "ppm": b"P6 60000 60000 255\n" + bytes(99),
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_a_decompression_bomb_is_refused_by_its_header(kind: str) -> None:
    assert "pixels" in reason(BOMBS[kind])


def test_the_largest_size_is_not_refused_for_its_size() -> None:
    assert MAX_PIXELS == 8192 * 8192
    assert "pixels, more than the limit" in reason(png_of_size(8193, 8192))
    assert "more than the limit" not in reason(png_of_size(8192, 2))


def test_bombs_do_not_take_memory() -> None:
    """In a process of its own, which can tell the most it ever held."""
    script = (
        "import pickle, sys; from flatout.data.pixels.decode import Undecodable, decode_pixels\n"
        "bombs = pickle.load(sys.stdin.buffer)\n"
        "most = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "before = most()\n"
        "for bomb in bombs:\n"
        "    try: decode_pixels(bomb)\n"
        "    except Undecodable: pass\n"
        "    else: sys.exit('was decoded')\n"
        "print(most() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(list(BOMBS.values())), stdout=subprocess.PIPE, check=True
    )
    assert int(done.stdout) < 200_000  # kB


class Disagreeing:
    """A compiled decoder whose Huffman decoder reads other pixels than libjpeg's."""

    allowed = True

    def own_huffman(self, allow: bool) -> bool:
        self.allowed = allow
        return allow

    def load_slice(self, *given: Any) -> None:
        given[5][:] = 1 if self.allowed else 2


def test_a_huffman_decoder_that_disagrees_with_libjpeg_is_not_used() -> None:
    compiled: Any = Disagreeing()
    assert decode._check_huffman(compiled) is False
    assert compiled.allowed is False


@pytest.mark.skipif(not decode.OWN_HUFFMAN, reason="needs the compiled decoder with a tested libjpeg-turbo")
def test_an_untested_libjpeg_keeps_its_own_huffman_decoder(tmp_path: Path) -> None:
    """The library of this machine under another version's name: the pixels are the same, read by libjpeg alone."""
    (path,) = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libjpeg.so.62" in line
    }
    library = Path(path).read_bytes()
    other = library.replace(b"libjpeg-turbo version 2.1.5 (build", b"libjpeg-turbo version 2.1.9 (build")
    assert other != library
    (tmp_path / "libjpeg.so.62").write_bytes(other)
    code = "from flatout.data.pixels import decode; print(decode.native is not None, decode.decoder_name())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True compiled, libjpeg-turbo 2.1.5 with its own Huffman decoder"
