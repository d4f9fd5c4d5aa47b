"""From a decoded image to the pixels of a sample: crop, resize, shift, flip, recolour."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_datasets import pixels

from flatout.data.pixels import draws
from flatout.data.pixels.decode import Undecodable
from flatout.data.pixels.draws import Draws, draw
from flatout.data.pixels.reference import crop_box, place, place_raw, recolour
from flatout.data.pixels.views import SHIPPED, View

some = settings(max_examples=40, deadline=None)  # a loaded machine is no failure

sides = st.integers(1, 5000)
IMAGE = pixels(1, 31, 23) // 2 + 50  # neither black nor white anywhere


def row_of(view: View, seed: int = 0) -> np.ndarray:
    return draw(view, seed, 0, np.array([seed])).geometry[0]


def centre_row(fraction: float = 1.0, dx: int = 0, dy: int = 0, flip: bool = False) -> np.ndarray:
    row = row_of(replace(SHIPPED["eval-64"], fraction=fraction)).copy()
    row[[draws.SHIFT_X, draws.SHIFT_Y, draws.FLIP]] = dx, dy, flip
    return row


def placed(image: np.ndarray, row: np.ndarray, side: int) -> np.ndarray:
    """As [side, side, 3], from a buffer that was full of something else."""
    out = np.full((3, side, side), 77, np.uint8)
    place(image, row, side, out)
    return out.transpose(1, 2, 0)


@some
@given(sides, sides, st.integers(0, 10**6), st.sampled_from([(0.08, 1.0), (1e-6, 1e-5), (1.0, 1.0)]))
def test_a_random_crop_is_never_empty_and_never_outside(
    width: int, height: int, seed: int, scale: tuple[float, float]
) -> None:
    x, y, w, h = crop_box(row_of(replace(SHIPPED["train-224"], scale=scale), seed), width, height)
    assert 0 <= x < x + w <= width
    assert 0 <= y < y + h <= height


@some
@given(sides, sides, st.floats(0.001, 1))
def test_a_centre_crop_is_square_central_and_inside(width: int, height: int, fraction: float) -> None:
    x, y, w, h = crop_box(centre_row(fraction), width, height)
    assert w == h >= 1
    assert abs(w - min(width, height) * fraction) <= 1
    assert (x, y) == ((width - w) // 2, (height - h) // 2)
    assert x + w <= width
    assert y + h <= height


@some
@given(st.integers(100, 2000), st.integers(100, 2000), st.integers(0, 10**6))
def test_a_random_crop_has_the_area_and_ratio_that_were_drawn(width: int, height: int, seed: int) -> None:
    row = row_of(SHIPPED["train-224"], seed)
    _, _, w, h = crop_box(row, width, height)
    root = np.sqrt(width * height)
    sizes = zip(row[draws.WIDTHS] * root, row[draws.HEIGHTS] * root, strict=True)
    fitting = [(wide, high) for wide, high in sizes if round(wide) <= width and round(high) <= height]
    if fitting:
        assert (w, h) == (round(fitting[0][0]), round(fitting[0][1]))
    else:
        assert (w, h) == (width, height) or 0.74 < w / h < 1.35


def test_crops_reach_every_corner() -> None:
    boxes = [crop_box(row, 40, 30) for row in draw(SHIPPED["train-224"], 0, 0, np.arange(2000)).geometry]
    assert min(box[0] for box in boxes) == min(box[1] for box in boxes) == 0
    assert max(box[0] + box[2] for box in boxes) == 40
    assert max(box[1] + box[3] for box in boxes) == 30


@some
@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(0, 10**6), st.integers(-50, 50),
    st.integers(-50, 50), st.booleans(), st.booleans(),
)  # fmt: skip
def test_placing_equals_a_straightforward_reference(
    width: int, height: int, side: int, seed: int, dx: int, dy: int, flip: bool, random: bool
) -> None:
    image = pixels(seed % 5, width, height)
    row = (row_of(SHIPPED["train-224"], seed) if random else centre_row(0.8)).copy()
    row[[draws.SHIFT_X, draws.SHIFT_Y, draws.FLIP]] = dx, dy, flip
    x, y, w, h = crop_box(row, width, height)
    resized = Image.fromarray(image).crop((x, y, x + w, y + h)).resize((side, side), Image.Resampling.BILINEAR)
    canvas = Image.new("RGB", (side, side))
    canvas.paste(resized, (-dx, -dy))
    expected = np.asarray(canvas)[:, ::-1] if flip else np.asarray(canvas)
    assert np.array_equal(placed(image, row, side), expected)


def test_a_shift_to_the_right_shows_what_was_right_and_black_beyond() -> None:
    plain, shifted = placed(IMAGE, centre_row(), 16), placed(IMAGE, centre_row(dx=3, dy=-2), 16)
    assert np.array_equal(shifted[2:, :-3], plain[:-2, 3:])
    assert not shifted[:2].any()
    assert not shifted[:, -3:].any()


def test_a_flip_comes_after_the_shift() -> None:
    shifted = placed(IMAGE, centre_row(dx=3), 16)
    assert np.array_equal(placed(IMAGE, centre_row(dx=3, flip=True), 16), shifted[:, ::-1])


def test_an_image_of_the_right_size_is_not_touched() -> None:
    square = IMAGE[:20, :20]
    assert np.array_equal(placed(square, centre_row(), 20), square)


def test_raw_takes_the_image_as_it_is_or_not_at_all() -> None:
    out = np.zeros((3, 23, 31), np.uint8)
    place_raw(IMAGE, out)
    assert np.array_equal(out.transpose(1, 2, 0), IMAGE)
    with pytest.raises(Undecodable, match="23 x 31 pixels, but the raw view holds 31 x 23"):
        place_raw(IMAGE.transpose(1, 0, 2), out)


# --- colour ----------------------------------------------------------------------------------------------------------


def recoloured(view: View, slot: int = 0, seed: int = 0, **parts: np.ndarray) -> np.ndarray:
    drawn = draw(view, seed, 0, np.arange(200))
    drawn = replace(drawn, **parts)
    out = np.ascontiguousarray(IMAGE.transpose(2, 0, 1))
    recolour(out, drawn, slot, (1, 2, 3))
    assert out.shape == (3, 23, 31)
    assert out.dtype == np.uint8
    return out.transpose(1, 2, 0)


def jittered(*factors: float) -> np.ndarray:
    return recoloured(SHIPPED["eval-64"], colour=np.array([factors]))


def test_factors_of_one_change_nothing() -> None:
    assert np.array_equal(jittered(1, 1, 1), IMAGE)


def test_brightness_multiplies() -> None:
    assert np.array_equal(jittered(0.5, 1, 1), np.rint(IMAGE * 0.5).astype(np.uint8))
    assert np.array_equal(jittered(2, 1, 1), np.minimum(IMAGE.astype(int) * 2, 255))
    assert not jittered(0, 1, 1).any()


def test_without_contrast_all_is_one_grey() -> None:
    flat = jittered(1, 0, 1)
    assert (flat == flat[0, 0, 0]).all()
    assert abs(int(flat[0, 0, 0]) - np.asarray(Image.fromarray(IMAGE).convert("L")).mean()) < 1


def test_without_saturation_it_is_a_grey_image() -> None:
    grey = jittered(1, 1, 0)
    assert np.ptp(grey, axis=2).max() == 0
    assert np.abs(grey[:, :, 0].astype(int) - np.asarray(Image.fromarray(IMAGE).convert("L"))).max() <= 1


def test_erasing_fills_a_rectangle_with_the_mean_and_leaves_the_rest() -> None:
    square = replace(SHIPPED["eval-64"])
    drawn = Draws(draw(square, 0, 0, np.arange(1)).geometry, None, None, np.array([[0.25, 0.5, 0.5, 0.25]]))
    image = np.full((3, 20, 20), 200, np.uint8)
    recolour(image, drawn, 0, (1, 2, 3))
    inside = np.zeros((20, 20), bool)
    inside[10:15, 5:15] = True
    for channel, fill in zip(image, (1, 2, 3), strict=True):
        assert np.array_equal(channel, np.where(inside, fill, 200))


def test_a_width_of_zero_erases_nothing() -> None:
    assert np.array_equal(recoloured(SHIPPED["eval-64"], erase=np.array([[0.2, 0.2, 0.0, 0.5]])), IMAGE)


OPERATIONS = [
    "identity", "shear x", "shear y", "translate x", "translate y", "rotate", "brightness", "saturation", "contrast",
    "sharpness", "posterize", "solarize", "autocontrast", "equalize",
]  # fmt: skip


@pytest.mark.parametrize("number", range(14), ids=OPERATIONS)
def test_each_operation_of_trivial_augment(number: int) -> None:
    def applied(strength: float, sign: float) -> np.ndarray:
        return recoloured(SHIPPED["eval-64"], trivial=np.array([[(number + 0.5) / 14, strength, sign]]))

    strong = applied(0.95, 0.1)
    assert np.array_equal(strong, applied(0.95, 0.1))
    if OPERATIONS[number] == "identity":
        assert np.array_equal(strong, IMAGE)
    else:
        assert not np.array_equal(strong, IMAGE)
    if OPERATIONS[number] not in ("identity", "posterize", "solarize", "autocontrast", "equalize"):
        assert np.array_equal(applied(0.0, 0.1), IMAGE)
        assert not np.array_equal(applied(0.95, 0.9), strong)  # the other way round


def test_trivial_augment_uses_every_operation() -> None:
    view = replace(SHIPPED["eval-64"], trivial_augment=True)
    trivial = draw(view, 0, 0, np.arange(2000)).trivial
    assert trivial is not None
    counts = np.bincount((trivial[:, 0] * 14).astype(int), minlength=14)
    assert counts.min() > 90
    images = {recoloured(view, slot).tobytes() for slot in range(60)}
    assert len(images) > 40


def _photo(height: int, width: int, seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@settings(max_examples=100, deadline=None)
@given(
    height=st.integers(1, 700), width=st.integers(1, 700), side=st.sampled_from([32, 64, 224]),
    seed=st.integers(0, 10),
)  # fmt: skip
def test_without_the_compiled_decoder_hardly_a_pixel_is_more_than_one_off(
    height: int, width: int, side: int, seed: int
) -> None:
    row = row_of(replace(SHIPPED["train-224"], scale=(1.0, 1.0), ratio=(width / height, width / height)))
    by_torch, by_pillow = np.zeros((2, 3, side, side), np.uint8)
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    for image in (_photo(height, width, seed), noise):
        place(image, row, side, by_torch, by_torch=True)
        place(image, row, side, by_pillow)
        differences = np.abs(by_torch.astype(int) - by_pillow)
        assert differences.max() <= 2
        assert (differences > 1).mean() <= 1e-3


def test_the_resize_in_force_is_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, coloured = SHIPPED["train-224"], replace(SHIPPED["train-224"], colour_jitter=(0.1, 0.0, 0.0))
    monkeypatch.setattr("flatout.data.pixels.views.RESIZES_BY_TORCH", False)
    before = plain.digest(), coloured.digest()
    monkeypatch.setattr("flatout.data.pixels.views.RESIZES_BY_TORCH", True)
    assert plain.digest() != before[0]
    assert coloured.digest() == before[1]  # colour operations make more of a difference of 1: Pillow resizes
