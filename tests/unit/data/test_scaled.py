"""`decode: scaled`: large JPEGs decoded no larger than their crop needs, by a rule that knows sizes alone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_datasets import encoded, opened, split_of, write_files

from flatout.config.loading import load_config as load_config
from flatout.config.schema import DataConfig, ViewConfig
from flatout.data.loading import prepare as prepare_module
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.tiers import choose_cache
from flatout.data.pixels.decode import decode_pixels, native
from flatout.data.pixels.draws import draw
from flatout.data.pixels.reference import choose_shrink, decode_scaled, place, place_shrunk, shrink_box
from flatout.data.pixels.views import SHIPPED, resolve_view
from flatout.data.source.dataset import Split
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.errors import ConfigError
from flatout.service.protocol.specs import describe, open_preparer

EXACT = replace(SHIPPED["train-224"], name="photos", size=24)
SCALED = replace(EXACT, decode="scaled")
ENCODINGS: dict[str, dict[str, Any]] = {
    "420": {"subsampling": 2}, "422": {"subsampling": 1}, "444": {"subsampling": 0},
    "progressive": {"progressive": True}, "restarts": {"restart_marker_blocks": 5},
}  # fmt: skip


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Detail at several scales, so that a crop that is a pixel off shows."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cell, weight in ((64, 0.6), (16, 0.3), (4, 0.1)):
        coarse = Image.fromarray(rng.integers(0, 256, (height // cell + 2, width // cell + 2, 3), np.uint8))
        total += weight * np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray(total.astype(np.uint8))


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = image.getexif()
    exif[0x0112] = orientation
    return encoded(image, quality=90, exif=exif)


def photos() -> dict[str, bytes]:
    files = {name: encoded(photo(1, 431, 307), quality=90, **options) for name, options in ENCODINGS.items()}
    files |= {kind: simplejpeg.encode_jpeg(np.asarray(photo(2, 333, 407)), 90, "RGB", kind) for kind in ("440", "411")}
    files |= {f"turned{way}": turned(photo(3, 420, 260), way) for way in (3, 6, 8)}
    files["grey"] = encoded(photo(4, 300, 250).convert("L"), quality=90)
    files["cmyk"] = encoded(photo(5, 300, 250).convert("CMYK"), quality=90)
    files["png"] = encoded(photo(6, 300, 250), "PNG")
    files["small"] = encoded(photo(7, 40, 30), quality=90)
    files["torn"] = files["420"][: len(files["420"]) // 2]
    return files


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {f"train/{'ab'[n % 2]}/{name}.jpg": data for n, (name, data) in enumerate(photos().items())}
    val = {f"val/{name}/0.jpg": encoded(photo(8, 50, 50)) for name in "ab"}
    return write_files(tmp_path_factory.mktemp("photos"), files | val)


@pytest.fixture
def split(root: Path) -> Split:
    return opened(root).train


def batches(recipe: BatchPlan) -> Iterator[np.ndarray]:
    for epoch in range(3):
        for index in range(recipe.batches_per_epoch):
            yield prepare(recipe, epoch, index, np.zeros(recipe.shape(epoch), np.uint8)).images.copy()


sides = st.integers(1, 5000)


@settings(max_examples=200, deadline=None)
@given(sides, sides, st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 300))
def test_the_smallest_scale_that_covers_the_crop(width: int, height: int, x: int, y: int, side: int) -> None:
    box = (x, y, width, height)
    shrink = choose_shrink(box, side)
    _, _, w, h = shrink_box(box, shrink)
    assert shrink == 1 or min(w, h) >= side
    assert shrink == 8 or min(width, height) // (2 * shrink) < side
    left, top, w, h = shrink_box(box, shrink)
    for edge, exact in ((left, x), (top, y), (left + w, x + width), (top + h, y + height)):
        assert abs(edge * shrink - exact) <= shrink / 2
        assert edge <= -(-exact // shrink)  # libjpeg rounds the picture up: inside


@pytest.mark.skipif(native is None, reason="the optional extension is not built")
@pytest.mark.parametrize("name", [name for name in photos() if name != "torn"])
@pytest.mark.parametrize("side", [1, 7, 24, 33, 100])
def test_compiled_and_pillow_are_equal_to_the_byte(name: str, side: int) -> None:
    data, geometry = photos()[name], draw(SCALED, 0, 0, np.arange(40)).geometry
    out, status = np.zeros((40, 3, side, side), np.uint8), np.zeros(40, np.int32)
    native.load_slice([data] * 40, None, geometry, side, 0, out, status, None, True)
    assert (status == 0).all() or (name in ("cmyk", "png") or name.startswith("turned"))
    for slot in np.flatnonzero(status == 0):
        expected = np.zeros((3, side, side), np.uint8)
        place_shrunk(decode_scaled(data, geometry[slot], side), geometry[slot], side, expected)
        assert np.array_equal(out[slot], expected)


def skimmed() -> dict[str, bytes]:
    """Large enough that what lies above a crop is passed over in several stretches at once (native/skim.c)."""
    image, noise = photo(9, 1200, 1000), np.random.default_rng(0).integers(0, 256, (500, 600, 3), np.uint8)
    return {
        "420": encoded(image, quality=97, subsampling=2),
        "411": simplejpeg.encode_jpeg(np.asarray(image), 97, "RGB", "411"),
        "own tables": encoded(image, quality=97, subsampling=0, optimize=True),
        "grey": encoded(image.convert("L"), quality=98),
        "full blocks": encoded(noise, quality=100, subsampling=0),  # that no end code follows
        "flat": encoded(
            np.where(np.arange(1000)[:, None, None] < 500, 99, np.asarray(image)), quality=97, subsampling=2
        ),
    }


@pytest.mark.skipif(native is None, reason="the optional extension is not built")
@pytest.mark.parametrize("name", skimmed())
@pytest.mark.parametrize("side", [20, 200])
def test_large_pictures_are_equal_to_the_byte_too(name: str, side: int) -> None:
    data, geometry = skimmed()[name], draw(SCALED, 0, 0, np.arange(12)).geometry
    assert len(data) > 200_000
    scaled, exact = (np.zeros((12, 3, side, side), np.uint8) for _ in range(2))
    for out, is_scaled in ((scaled, True), (exact, False)):
        status = np.ones(12, np.int32)
        native.load_slice([data] * 12, None, geometry, side, 0, out, status, None, is_scaled)
        assert not status.any()
    pixels, expected = decode_pixels(data), np.zeros((3, side, side), np.uint8)
    for slot in range(12):
        place_shrunk(decode_scaled(data, geometry[slot], side), geometry[slot], side, expected)
        assert np.array_equal(scaled[slot], expected)
        place(pixels, geometry[slot], side, expected)
        assert np.array_equal(exact[slot], expected)


def test_a_scaled_crop_shows_what_the_exact_one_shows(split: Split) -> None:
    exact, scaled = (list(batches(BatchPlan(split, view, 0, 5))) for view in (EXACT, SCALED))
    differences = np.concatenate([np.abs(a.astype(int) - b).ravel() for a, b in zip(exact, scaled, strict=True)])
    assert 0 < differences.mean() < 4
    moved = np.concatenate([np.abs(np.roll(a, 1, 3).astype(int) - a).ravel() for a in exact])
    assert differences.mean() < moved.mean() / 3  # what one pixel of the result would make


def test_small_pictures_and_other_formats_are_exact(tmp_path: Path) -> None:
    files = {f"train/a/{n}.jpg": encoded(photo(n, 47, 47), quality=90) for n in range(4)}
    files |= {f"train/b/{n}.png": encoded(photo(n, 300, 250), "PNG") for n in range(4)}
    files |= {f"val/{name}/0.jpg": encoded(photo(8, 50, 50)) for name in "ab"}
    split = opened(write_files(tmp_path, files)).train
    exact, scaled = (np.concatenate(list(batches(BatchPlan(split, view, 0, 4)))) for view in (EXACT, SCALED))
    assert np.array_equal(exact, scaled)


@pytest.mark.skipif(native is None, reason="the optional extension is not built")
def test_the_same_batches_without_the_compiled_decoder(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = BatchPlan(split, SCALED, 0, 5)
    expected = list(batches(recipe))
    monkeypatch.setattr(prepare_module, "native", None)
    assert all(np.array_equal(a, b) for a, b in zip(batches(recipe), expected, strict=True))


def test_the_same_batches_from_packs_ranks_and_pools(root: Path, tmp_path: Path, split: Split) -> None:
    expected = list(batches(BatchPlan(split, SCALED, 0, 6)))
    list(write_pack(opened(root), tmp_path / "pack", PackOptions()))
    packed = opened(tmp_path / "pack").train
    assert all(np.array_equal(a, b) for a, b in zip(batches(BatchPlan(packed, SCALED, 0, 6)), expected, strict=True))
    ranks = [batches(BatchPlan(split, SCALED, 0, 6, rank=rank, world_size=2)) for rank in range(2)]
    for whole, *parts in zip(expected, *ranks, strict=True):
        assert np.array_equal(np.concatenate(parts), whole)
    config = DataConfig(stage="off", max_quarantine_share=0.5)
    for workers, kind in ((0, "auto"), (2, "thread"), (1, "process")):
        chosen = config.model_copy(update={"worker_kind": kind})
        with open_loader(BatchPlan(split, SCALED, 0, 6), chosen, workers) as loader:
            made = [batch.images.numpy().copy() for epoch in range(3) for batch in loader.epoch(epoch)]
        assert all(np.array_equal(a, b) for a, b in zip(made, expected, strict=True))


def test_shared_batches_carry_it(root: Path, split: Split) -> None:
    recipe = BatchPlan(split, SCALED, 0, 6)
    spec = describe(recipe, DataConfig(path=str(root)), "train")
    preparer = open_preparer(spec)
    assert preparer.plan.view == SCALED
    assert spec.view != describe(replace(recipe, view=EXACT), DataConfig(path=str(root)), "train").view


def test_an_exact_view_keeps_the_digest_it_had() -> None:
    with_pillow_13 = {
        "train-224": "e021c11f39fa7631",
        "eval-224": "90871a084ddd88ce",
        "train-64": "72ef91a62c8269a0",
        "eval-64": "e8393a671e935847",
    }
    if native is not None and Image.__version__.startswith("13."):
        assert {name: SHIPPED[name].digest() for name in with_pillow_13} == with_pillow_13
    assert SCALED.digest() != EXACT.digest()


def test_a_view_of_the_recipe_can_be_scaled() -> None:
    mine = resolve_view("mine", {"mine": ViewConfig(base="train-224", decode="scaled")})
    assert mine == replace(SHIPPED["train-224"], name="mine", decode="scaled")
    with pytest.raises(ConfigError, match=r"view 'mine' has decode: scaled but crop: raw"):
        resolve_view("mine", {"mine": ViewConfig(base="raw", decode="scaled")})


@pytest.mark.parametrize("key", ["view", "eval_view"])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_cache_that_is_asked_for_is_refused(split: Split, key: str, cache: str) -> None:
    views = {"mine": {"base": "train-224", "decode": "scaled"}}
    with pytest.raises(ConfigError, match=rf"data\.cache is {cache} but views\.mine\.decode is scaled \({key}\)"):
        load_config({"data": {key: "mine", "cache": cache}, "views": views})
    load_config({"data": {key: "mine"}, "views": views})
    with pytest.raises(ConfigError, match=rf"cache is {cache} but view 'photos' has decode: scaled"):
        choose_cache(cache, BatchPlan(split, SCALED, 0, 6), "thread")


def test_auto_says_why_it_does_not_fill(split: Split) -> None:
    chosen = choose_cache("auto", BatchPlan(split, SCALED, 0, 6), "thread", epochs=90)
    assert chosen.store is None
    assert chosen.choice.note == "cache: off, view photos has decode: scaled and a cache keeps whole, exact images"


def test_a_decoded_pack_is_refused(tmp_path: Path) -> None:
    split_of(tmp_path / "data", 4)
    list(write_pack(opened(tmp_path / "data"), tmp_path / "pack", PackOptions("decoded")))
    with pytest.raises(ConfigError, match="view 'photos' has decode: scaled but the pack holds decoded images"):
        choose_cache("off", BatchPlan(opened(tmp_path / "pack").train, SCALED, 0, 6), "thread")


def test_kept_pictures_are_never_scaled() -> None:
    compiled = native or pytest.skip("the optional extension is not built")
    with pytest.raises(ValueError, match="keep must be None"):
        compiled.load_slice([], None, np.zeros((0, 27)), 8, 0, np.zeros(0, np.uint8), np.zeros(0, np.int32), (), True)
