"""Views: the shipped ones, those of a recipe, and what identifies their pixels."""

from dataclasses import fields, replace

import pytest
import torch

from flatout.config.schema import ViewConfig
from flatout.data.pixels.decode import native
from flatout.data.pixels.normalize import normalize
from flatout.data.pixels.views import SHIPPED, View, resolve_view
from flatout.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "crop", "size"),
    [("train-224", "random-resized", 224), ("eval-224", "centre", 224), ("train-64", "pad", 64),
     ("eval-64", "centre", 64)],
)  # fmt: skip
def test_views_that_ship(name: str, crop: str, size: int) -> None:
    view = resolve_view(name)
    assert (view.name, view.crop, view.side(0)) == (name, crop, size)
    assert view.random == name.startswith("train")


def test_raw_ships_and_is_not_random() -> None:
    assert not resolve_view("raw").random


def test_a_view_of_the_recipe_changes_what_it_names_and_keeps_the_rest() -> None:
    mine = resolve_view("mine", {"mine": ViewConfig(base="train-224", size=32, scale=(0.35, 1.0))})
    assert mine == replace(SHIPPED["train-224"], name="mine", size=32, scale=(0.35, 1.0))


def test_a_view_of_the_recipe_can_start_from_nothing() -> None:
    mine = resolve_view("mine", {"mine": ViewConfig(crop="centre", size=48, fraction=0.5)})
    assert mine == View("mine", crop="centre", size=48, fraction=0.5)


def test_a_view_of_the_recipe_goes_before_a_shipped_one() -> None:
    assert resolve_view("eval-64", {"eval-64": ViewConfig(base="eval-64", size=40)}).size == 40


@pytest.mark.parametrize("off", [{"flip": 0.0}, {"colour_jitter": (0, 0, 0)}, {"trivial_augment": False}])
def test_switching_something_off_counts_as_a_change(off: dict[str, object]) -> None:
    on = View("x", crop="centre", flip=0.5, colour_jitter=(0.4, 0.4, 0.4), trivial_augment=True)
    (name,) = off
    mine = resolve_view("mine", {"mine": ViewConfig(base="train-64", **off)})
    assert not getattr(mine, name) or not any(getattr(mine, name))
    assert on.random


def test_an_unknown_view_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown view 'train-246'; did you mean train-224\?"):
        resolve_view("train-246")
    with pytest.raises(ConfigError, match=r"did you mean my-view\?"):
        resolve_view("my-veiw", {"my-view": ViewConfig(base="raw")})
    with pytest.raises(ConfigError, match=r"known: train-224, eval-224, train-64, eval-64, raw"):
        resolve_view("zzz")


def test_a_view_without_base_and_crop_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"view 'mine' has neither base nor crop; set views\.mine\.base to one of"):
        resolve_view("mine", {"mine": ViewConfig(size=32)})
    with pytest.raises(ConfigError, match=r"neither base nor crop"):
        resolve_view("mine", {"mine": ViewConfig(base="")})


def test_an_unknown_base_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown view 'train-23'"):
        resolve_view("mine", {"mine": ViewConfig(base="train-23")})


OTHER = {
    "crop": "centre", "size": 65, "sizes": ((0, 32),), "fraction": 0.9, "scale": (0.1, 1.0), "ratio": (0.5, 2.0),
    "pad": 5, "flip": 0.4, "colour_jitter": (0.1, 0.0, 0.0), "trivial_augment": True, "erase": 0.1, "mixup": 0.2,
    "cutmix": 1.0, "decode": "scaled", "alternate_flip": True,
    "transform": "json:loads",  # any code whose source can be read
}  # fmt: skip


def test_the_digest_changes_with_everything_that_changes_pixels() -> None:
    view = SHIPPED["train-64"]
    of_a_transform = {"transform_source", "transform_options"}
    assert set(OTHER) | {"name", "mean", "std"} | of_a_transform == {each.name for each in fields(View)}
    digests = {view.digest(), *(replace(view, **{name: value}).digest() for name, value in OTHER.items())}
    assert len(digests) == len(OTHER) + 1


def test_the_digest_does_not_change_with_name_and_normalisation() -> None:
    view = SHIPPED["train-64"]
    assert replace(view, name="x", mean=(0.5, 0.5, 0.5), std=(0.1, 0.1, 0.1)).digest() == view.digest()


def test_sizes_grow_with_the_epochs() -> None:
    view = resolve_view("mine", {"mine": ViewConfig(base="train-64", sizes={10: 48, 2: 32, 20: 64}, size=24)})
    assert [view.side(epoch) for epoch in (0, 1, 2, 9, 10, 19, 20, 500)] == [24, 24, 32, 32, 48, 48, 64, 64]


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalisation_is_that_of_the_view(channels_last: bool) -> None:
    view = replace(SHIPPED["eval-64"], mean=(0.1, 0.5, 0.9), std=(0.5, 0.25, 0.125))
    images = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5) * 2
    mean, std = torch.tensor(view.mean)[:, None, None], torch.tensor(view.std)[:, None, None]
    expected = (images.float() / 255 - mean) / std
    assert torch.allclose(normalize(images, view, channels_last=channels_last), expected, atol=1e-5)
    assert torch.equal(normalize(images), normalize(images, "eval-224"))


@pytest.mark.skipif(native is None, reason="the compiled path is not built")
def test_normalisation_without_the_compiled_path_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (5, 3, 33, 47), dtype=torch.uint8)
    compiled = normalize(images, "train-224").clone()
    monkeypatch.setattr("flatout.data.pixels.normalize.native", None)
    assert torch.equal(normalize(images, "train-224"), compiled)


@pytest.mark.skipif(native is None, reason="the compiled path is not built")
def test_memory_of_floats_is_used_again_only_when_nobody_holds_it() -> None:
    black, white = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.full((4, 3, 8, 8), 255, dtype=torch.uint8)
    first = normalize(black)
    part, kept = first[1:2], first[1:2].clone()
    place = first.data_ptr()
    del first  # a view of it is still held
    assert normalize(white).data_ptr() != place
    assert torch.equal(part, kept)
    del part
    again = {normalize(white).data_ptr() for _ in range(3)}
    assert place in again or len(again) == 1  # one buffer goes round
