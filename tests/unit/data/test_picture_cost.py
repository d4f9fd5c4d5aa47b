"""What a picture may cost is decided from its bytes, the same on every path; what ends early is damaged."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_datasets import split_of

from flatout.cache.arena import memory_arena
from flatout.data.audit.examination import BOMB, BROKEN, look_at
from flatout.data.loading import prepare
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.sample_cache import SampleCache
from flatout.data.pixels import decode
from flatout.data.pixels import picture_limits as picture_cost
from flatout.data.pixels import reference as pixels
from flatout.data.pixels.picture_limits import CostsTooMuch, Undecodable, count_scans
from flatout.data.pixels.views import SHIPPED
from hostile_pictures import encoded, ends_early, flat_png, lying_header, many_scans, smooth

TURNED = Image.Exif()
TURNED[0x0112] = 6
COSTLY = {
    "3,000 scans": (many_scans(3000), "3010 scans of 1048576 pixels, more than the limit of 100"),
    "a header that lies": (lying_header(), "8000 x 8000 pixels in 898 B"),
    "grey PNG": (flat_png(10_000), "10000 x 10000 pixels, more than the limit of 33554432; scale it down"),
    "smaller PNG": (flat_png(5_000, 2), "times the file, more than the limit of 256 above 4194304 pixels"),
    "WebP": (encoded(Image.new("RGB", (5000, 5000)), "WEBP", lossless=True), "more than the limit of 256"),
    "GIF": (encoded(Image.new("P", (5000, 5000)), "GIF"), "more than the limit of 256"),
}
EARLY = {
    "baseline": ends_early(),
    "progressive": ends_early(progressive=True),
    "turned by EXIF": ends_early(exif=TURNED),
    "grey": ends_early(smooth(96, 80).convert("L")),
    "CMYK": ends_early(smooth(96, 80).convert("CMYK")),
    "without an end marker": ends_early()[:-2],
}
DECODERS: dict[str, Callable[[bytes], object]] = {
    "pixels": decode.decode_pixels,
    "image": decode.decode_image,
    "scaled": lambda data: decode.decode_shrunk(data, lambda width, height: 4),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", COSTLY)
def test_what_costs_too_much_is_not_even_tried(kind: str, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*_: object, **__: object) -> None:
        pytest.fail("decoding began")

    monkeypatch.setattr(decode.simplejpeg, "decode_jpeg", tried)
    monkeypatch.setattr(Image.Image, "load", tried)
    data, expected = COSTLY[kind]
    with pytest.raises(CostsTooMuch) as caught:
        DECODERS[decoder](data)
    assert expected in str(caught.value)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", EARLY)
def test_a_jpeg_that_ends_early_is_damaged(kind: str, decoder: str) -> None:
    with pytest.raises(Undecodable, match=r"(?i)broken image: .*(premature end|truncated)"):
        DECODERS[decoder](EARLY[kind])


def test_the_audit_lists_both() -> None:
    assert {kind: look_at(data).status for kind, (data, _) in COSTLY.items()} == dict.fromkeys(COSTLY, BOMB)
    assert {kind: look_at(data).status for kind, data in EARLY.items()} == dict.fromkeys(EARLY, BROKEN)


HONEST = {
    "a page of 8 megapixels": lambda: encoded(page(2480, 3508), "TIFF", compression="group4"),
    "a photo of 12 megapixels": lambda: encoded(smooth(4000, 3000)),
    "a blank JPEG with plain tables": lambda: encoded(Image.new("RGB", (2600, 2000))),
    "a small flat PNG": lambda: flat_png(1000),
    "20 scans": lambda: many_scans(10, 64),
    "bytes between segments": lambda: with_garbage(encoded(smooth(50, 40))),
}


def page(width: int, height: int) -> Image.Image:
    lines = np.full((height, width), 255, np.uint8)
    lines[200:-200:60, 300:-300:7] = 0
    return Image.fromarray(lines).convert("1")


def with_garbage(jpeg: bytes) -> bytes:
    at = jpeg.index(b"\xff\xdb")
    return jpeg[:at] + b"abc" + jpeg[at:]


@pytest.mark.parametrize("kind", HONEST)
def test_honest_pictures_are_read(kind: str) -> None:
    data = HONEST[kind]()
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode.decode_pixels(data), expected)


def test_fewer_scans_of_more_pixels() -> None:
    picture_cost.refuse_scans(many_scans(60, 32), 10_000_000)
    with pytest.raises(CostsTooMuch, match="70 scans of 25000000 pixels, more than the limit of 42; save it again"):
        picture_cost.refuse_scans(many_scans(60, 32), 25_000_000)


def test_scans_of_thumbnails_and_of_later_pictures_are_not_its_own() -> None:
    inner = encoded(smooth(40, 30), progressive=True)
    data = encoded(smooth(80, 60), exif=b"Exif\0\0" + inner)
    assert (data.count(b"\xff\xda"), count_scans(data), count_scans(data + inner)) == (11, 1, 1)
    assert count_scans(inner) == 10


def test_the_compiled_decoder_has_the_same_numbers() -> None:
    header = (Path(decode.__file__).parent / "native/native.h").read_text()
    for name in ("MAX_FILE_BYTES", "MAX_PIXELS", "SMALL_PIXELS", "MAX_EXPANSION", "MAX_SCANS", "MAX_SCAN_PIXELS"):
        text = re.search(rf"#define {name} (.*?)\s*(/\*|\n)", header)[1]  # type: ignore[index]
        assert eval(text.replace("UINT64_C(1)", "1")) == getattr(picture_cost, name)


def left_out(recipe: BatchPlan, cache: SampleCache | None = None, epochs: int = 6) -> set[tuple[int, int]]:
    found = set()
    for epoch in range(epochs):
        for index in range(recipe.batches_per_epoch):
            batch = prepare.prepare(recipe, epoch, index, np.zeros(recipe.shape(epoch), np.uint8), cache)
            found |= {(epoch, failure.sample_id) for failure in batch.failures}
    return found


def test_the_same_samples_are_left_out_on_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crops that end above the damage must see it too: else a sample would be in some epochs' batches only."""
    bad = {1: ends_early(share=0.9), 2: ends_early(smooth(99, 200), 0.95), 5: lying_header(), 6: many_scans(150, 32)}
    recipe = BatchPlan(split_of(tmp_path, 8, bad), replace(SHIPPED["train-224"], size=16), seed=3, batch_size=4)
    expected = {(epoch, number) for epoch in range(6) for number in bad}
    assert left_out(recipe) == expected
    assert left_out(recipe) == expected  # the whole ones were read to their end before, these were not
    assert left_out(replace(recipe, view=replace(recipe.view, decode="scaled"))) == expected
    assert left_out(recipe, SampleCache(memory_arena(8, 10**6))) == expected
    monkeypatch.setattr(prepare, "native", None)
    assert left_out(recipe) == expected
    assert left_out(replace(recipe, view=replace(recipe.view, decode="scaled"))) == expected


def test_a_file_that_ended_well_is_parsed_to_its_end_once(tmp_path: Path) -> None:
    recipe = BatchPlan(
        split_of(tmp_path, 8, {1: ends_early()}), replace(SHIPPED["train-224"], size=16), 0, batch_size=8
    )
    if prepare.native is None:
        pytest.skip("the extension is not built")
    assert not recipe.ends_well.any()
    left_out(recipe, epochs=1)
    assert np.flatnonzero(~recipe.ends_well).tolist() == [1]


def test_place_shrunk_equals_pillows_own_scaling() -> None:
    """simplejpeg takes Pillow's place where a crop is decoded scaled."""
    data, row = encoded(smooth(400, 300), exif=TURNED), np.zeros(27)
    row[1] = 1.0
    shrunk = pixels.decode_scaled(data, row, 64)
    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (100, 75))
    assert (shrunk.width, shrunk.height, shrunk.shrink) == (300, 400, 4)
    assert np.array_equal(np.asarray(shrunk.image), np.asarray(image.transpose(Image.Transpose.ROTATE_270)))
