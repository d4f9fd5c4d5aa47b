"""A batch is a pure function: the same bytes every time, on every path, with unusable samples left out."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_datasets import TORN, encoded, jpeg, opened, pixels, sample_files, split_of, write_files, write_tar
from trouble import troubled

from flatout.config.schema import DataConfig
from flatout.data.batch import Prepared
from flatout.data.loading import prepare as prepare_module
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.decode import decode_pixels, native
from flatout.data.pixels.draws import draw, draw_mix
from flatout.data.pixels.reference import place, recolour
from flatout.data.pixels.views import SHIPPED, View
from flatout.errors import DataError, StoreUnreachable

SIDE = 16
TRAIN = replace(SHIPPED["train-224"], size=SIDE)
PADDED = replace(SHIPPED["train-64"], size=SIDE)
EVAL = replace(SHIPPED["eval-224"], size=SIDE)
STRONG = replace(TRAIN, colour_jitter=(0.4, 0.4, 0.4), trivial_augment=True, erase=0.5)
MIXED = replace(PADDED, mixup=0.2, cutmix=1.0)


def prepared(recipe: BatchPlan, epoch: int = 0, index: int = 0) -> Prepared:
    return prepare(recipe, epoch, index, np.full(recipe.shape(epoch), 99, np.uint8))


def whole_epoch(recipe: BatchPlan, epoch: int = 0) -> dict[int, bytes]:
    """The pixels of every sample that was used, by id."""
    found: dict[int, bytes] = {}
    for index in range(recipe.batches_per_epoch):
        batch = prepared(recipe, epoch, index)
        for sample_id, image in zip(batch.sample_ids.tolist(), batch.images, strict=True):
            assert sample_id not in found
            found[sample_id] = image.tobytes()
    return found


@pytest.mark.parametrize("view", [TRAIN, PADDED, EVAL, STRONG], ids=["resized", "padded", "eval", "strong"])
def test_a_batch_equals_its_samples_one_by_one(tmp_path: Path, view: View) -> None:
    split = split_of(tmp_path, 11)
    batch = prepared(BatchPlan(split, view, seed=5, batch_size=8), epoch=3)
    assert batch.images.shape == (8, 3, SIDE, SIDE)
    assert np.array_equal(batch.labels, split.labels[batch.sample_ids])
    fill = tuple(round(255 * value) for value in view.mean)
    for sample_id, image in zip(batch.sample_ids.tolist(), batch.images, strict=True):
        expected = np.zeros((3, SIDE, SIDE), np.uint8)
        drawn = draw(view, 5, 3, np.array([sample_id]))
        decoded = decode_pixels((tmp_path / split.names[sample_id]).read_bytes())
        place(decoded, drawn.geometry[0], SIDE, expected, view.resizes_by_torch)  # another resize without the decoder
        recolour(expected, drawn, 0, fill)  # type: ignore[arg-type]
        assert np.array_equal(image, expected)


def test_a_sample_does_not_depend_on_the_batch_it_is_in(tmp_path: Path) -> None:
    split = split_of(tmp_path, 11)
    small, large = (whole_epoch(BatchPlan(split, STRONG, seed=5, batch_size=size)) for size in (2, 11))
    assert small == large
    assert set(small) == set(range(11))
    assert whole_epoch(BatchPlan(split, STRONG, seed=5, batch_size=4, shuffle=False)) == small


def test_other_epochs_and_seeds_give_other_pixels_in_another_order(tmp_path: Path) -> None:
    split = split_of(tmp_path, 11)
    first = prepared(BatchPlan(split, TRAIN, 0, 11))
    for other in (prepared(BatchPlan(split, TRAIN, 1, 11)), prepared(BatchPlan(split, TRAIN, 0, 11), epoch=1)):
        assert sorted(other.sample_ids.tolist()) == list(range(11))
        assert other.sample_ids.tolist() != first.sample_ids.tolist()
        assert {image.tobytes() for image in other.images}.isdisjoint({image.tobytes() for image in first.images})


def test_without_shuffling_ids_are_in_order_and_the_last_batch_is_short(tmp_path: Path) -> None:
    recipe = BatchPlan(split_of(tmp_path, 11), EVAL, 0, 4, shuffle=False)
    ids = [prepared(recipe, 7, index).sample_ids.tolist() for index in range(recipe.batches_per_epoch)]
    assert ids == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert prepared(recipe, 7, 2).images.shape == (3, 3, SIDE, SIDE)


def test_images_grow_with_the_epochs(tmp_path: Path) -> None:
    recipe = BatchPlan(split_of(tmp_path, 4), replace(TRAIN, sizes=((0, 8), (2, 12))), 0, 4)
    assert [prepared(recipe, epoch).images.shape[2:] for epoch in (0, 1, 2)] == [(8, 8), (8, 8), (12, 12)]


# --- every path gives the same bytes ---------------------------------------------------------------------------------


def every_kind_of_file() -> dict[str, bytes]:
    turned = Image.Exif()
    turned[0x0112] = 6
    colour = pixels(2, 40, 30)
    kinds = {
        "plain.jpg": jpeg(1), "grey.jpg": encoded(colour[:, :, 0]),
        "progressive.jpg": encoded(colour, progressive=True),
        "full.jpg": encoded(colour, subsampling=0), "cmyk.jpg": encoded(Image.fromarray(colour).convert("CMYK")),
        "turned.jpg": encoded(colour, exif=turned), "png named.JPEG": encoded(colour, "PNG"),
        "palette.png": encoded(Image.fromarray(colour).convert("P"), "PNG"), "one pixel.jpg": jpeg(1, 1, 1),
        "alpha.png": encoded(Image.fromarray(colour).convert("RGBA"), "PNG"), "wide.jpg": jpeg(4, 300, 5),
        "empty.jpg": b"", "text.jpg": b"no image at all", "torn.jpg": jpeg(7)[:200], "tail.jpg": jpeg(7) + b"more",
    }  # fmt: skip
    return {
        f"{split}/{label}/{name}": data for split in ("train", "val") for label in "ab" for name, data in kinds.items()
    }


BAD = {"empty.jpg": "empty file", "text.jpg": "not an image: starts with b'no image'", "torn.jpg": "broken image: "}


@pytest.mark.parametrize("view", [TRAIN, PADDED, EVAL, STRONG], ids=["resized", "padded", "eval", "strong"])
def test_compiled_or_not_cached_or_not_folder_or_tar(
    tmp_path: Path, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = every_kind_of_file()
    recipe = BatchPlan(opened(write_files(tmp_path / "folder", files)).train, view, 3, 8)
    expected = [prepared(recipe, epoch, index) for epoch in (0, 1) for index in range(recipe.batches_per_epoch)]
    assert sum(len(batch.failures) for batch in expected) == 2 * 2 * len(BAD)

    def equal(batches: list[Prepared]) -> bool:
        return all(
            np.array_equal(one.images, two.images)
            and np.array_equal(one.sample_ids, two.sample_ids)
            and np.array_equal(one.labels, two.labels)
            and one.failures == two.failures
            for one, two in zip(expected, batches, strict=True)
        )

    keys = [(epoch, index) for epoch in (0, 1) for index in range(recipe.batches_per_epoch)]
    tar = replace(recipe, split=opened(write_tar(tmp_path / "data.tar", files)).train)
    assert equal([prepared(tar, *key) for key in keys])
    with open_loader(recipe, DataConfig(cache="memory", stage="off", max_quarantine_share=1), workers=0) as cached:
        batches = [batch for epoch in (0, 1) for batch in cached.epoch(epoch)]
        assert cached.stages.cache_hits >= len(recipe.split) - 2 * len(BAD)
    assert all(np.array_equal(one.images, two.images.numpy()) for one, two in zip(expected, batches, strict=True))
    assert all(one.failures == two.failures for one, two in zip(expected, batches, strict=True))
    watched: list[int] = []
    careful = [prepare(recipe, *key, np.zeros(recipe.shape(0), np.uint8), watch=watched.append) for key in keys]
    assert equal(careful)
    assert watched[-1] == -1
    assert set(watched[:-1]) == {-1, *range(len(recipe.split))}
    if native is not None:
        monkeypatch.setattr(prepare_module, "native", None)
        assert equal([prepared(recipe, *key) for key in keys])


# --- samples that cannot be used -------------------------------------------------------------------------------------


def test_the_list_of_unusable_samples_equals_what_was_planted(tmp_path: Path) -> None:
    split = opened(write_files(tmp_path, every_kind_of_file())).train
    batch = prepared(BatchPlan(split, EVAL, 0, len(split)))
    assert sorted((each.name.split("/")[2], each.sample_id) for each in batch.failures) == sorted(
        (name.split("/")[2], number) for number, name in enumerate(split.names) if name.split("/")[2] in BAD
    )
    for failure in batch.failures:
        assert split.names[failure.sample_id] == failure.name
        assert failure.reason.startswith(BAD[failure.name.split("/")[2]])


@pytest.mark.parametrize("view", [EVAL, STRONG], ids=["eval", "strong"])
def test_the_others_are_where_they_were_with_the_pixels_they_had(tmp_path: Path, view: View) -> None:
    whole = prepared(BatchPlan(split_of(tmp_path / "whole", 12), view, 1, 12))
    bad = {2: TORN, 5: b"", 6: b"text", 11: TORN}
    damaged = BatchPlan(split_of(tmp_path / "damaged", 12, bad), view, 1, 12)
    for _ in range(2):  # the same way every time
        batch = prepared(damaged)
        left = [slot for slot, sample_id in enumerate(whole.sample_ids.tolist()) if sample_id not in bad]
        assert batch.sample_ids.tolist() == whole.sample_ids[left].tolist()
        assert np.array_equal(batch.images, whole.images[left])
        assert np.array_equal(batch.labels, whole.labels[left])
        assert {failure.sample_id for failure in batch.failures} == set(bad)


def test_a_batch_of_nothing_usable_is_empty(tmp_path: Path) -> None:
    batch = prepared(BatchPlan(split_of(tmp_path, 4, dict.fromkeys(range(4), b"")), MIXED, 0, 4))
    assert batch.images.shape == (0, 3, SIDE, SIDE)
    assert len(batch.labels) == len(batch.sample_ids) == 0
    assert len(batch.failures) == 4


def test_a_file_that_went_away_is_left_out_and_named(tmp_path: Path) -> None:
    split = split_of(tmp_path, 4)
    os.unlink(tmp_path / split.names[2])
    batch = prepared(BatchPlan(split, EVAL, 0, 4))
    assert [(each.sample_id, each.name) for each in batch.failures] == [(2, split.names[2])]
    assert "not there any more" in batch.failures[0].reason


def test_a_store_that_fails_is_no_bad_sample(tmp_path: Path) -> None:
    recipe = BatchPlan(troubled(split_of(tmp_path, 4), 2, "unreachable"), EVAL, 0, 4)
    with pytest.raises(StoreUnreachable):
        prepared(recipe)


def test_a_banned_sample_is_never_decoded(tmp_path: Path) -> None:
    split = troubled(split_of(tmp_path, 6), 4, "deadly")
    batch = prepared(BatchPlan(split, EVAL, 0, 6, banned=(4,)))  # this process would not survive decoding it
    assert sorted(batch.sample_ids.tolist()) == [0, 1, 2, 3, 5]
    assert batch.failures[0].reason == "decoding it killed three workers"


@pytest.mark.parametrize("bad", [{0, 3, 7}, {1}, {8}, {0, 1}, set(range(8)), set(range(9))])
def test_mixing_follows_the_samples_that_are_left(tmp_path: Path, bad: set[int]) -> None:
    whole = prepared(BatchPlan(split_of(tmp_path / "whole", 9), MIXED, 0, 9, shuffle=False))
    batch = prepared(BatchPlan(split_of(tmp_path / "bad", 9, dict.fromkeys(bad, b"")), MIXED, 0, 9, shuffle=False))
    assert whole.mix is not None
    assert batch.mix is not None
    left = batch.sample_ids.tolist()
    assert left == [number for number in range(9) if number not in bad]
    for slot, sample_id in enumerate(left):
        partner = sample_id ^ 1
        if partner in left:
            assert left[batch.mix.partner[slot]] == partner
            assert batch.mix.keep[slot] == whole.mix.keep[sample_id]
            assert np.array_equal(batch.mix.box[slot], whole.mix.box[sample_id])
        else:
            assert (batch.mix.partner[slot], batch.mix.keep[slot]) == (slot, 1)
            assert not batch.mix.box[slot].any()


def test_mixing_is_drawn_for_the_pairs_of_the_batch(tmp_path: Path) -> None:
    batch = prepared(BatchPlan(split_of(tmp_path, 9), MIXED, 4, 6), epoch=2)
    expected = draw_mix(MIXED, 4, 2, batch.sample_ids, SIDE)
    assert batch.mix is not None
    assert expected is not None
    assert np.array_equal(batch.mix.keep, expected.keep)
    assert np.array_equal(batch.mix.box, expected.box)


# --- raw -------------------------------------------------------------------------------------------------------------


def raw_loader(path: Path, files: dict[str, bytes]):  # type: ignore[no-untyped-def]
    val = {f"val/{label}/0.jpg": jpeg(0) for label in "ab"}
    recipe = BatchPlan(opened(write_files(path, files | val)).train, SHIPPED["raw"], 0, 4, shuffle=False)
    return open_loader(recipe, DataConfig(cache="off", max_quarantine_share=1), workers=0)


def test_a_raw_view_gives_the_images_as_they_are(tmp_path: Path) -> None:
    images = [pixels(seed, 7, 5) for seed in range(4)]
    files = {f"train/{'aabb'[number]}/{number}.png": encoded(image, "PNG") for number, image in enumerate(images)}
    (batch,) = raw_loader(tmp_path, files).epoch(0)
    assert np.array_equal(batch.images.numpy().transpose(0, 2, 3, 1), np.stack(images))


def test_a_raw_view_takes_its_size_from_the_first_usable_sample(tmp_path: Path) -> None:
    files = {**sample_files(4, {0: b"text", 1: TORN}), "train/b/003.jpg": jpeg(3, 9, 9)}
    (batch,) = raw_loader(tmp_path, files).epoch(0)
    assert batch.sample_ids.tolist() == [2]
    assert [each.sample_id for each in batch.failures] == [0, 1, 3]
    assert "9 x 9 pixels, but the raw view holds" in batch.failures[2].reason


def test_a_raw_view_of_nothing_usable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no sample of the split can be decoded.*not an image"):
        raw_loader(tmp_path, sample_files(2, {0: b"text", 1: b"text"}))
