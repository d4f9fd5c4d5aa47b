"""`speedups: auto`: what it switches on, that every key of the user's own wins, and that a run's record loads back."""

from typing import Any

import pytest
import yaml

from flatout.config.loading import dump_config, load_config
from flatout.config.speedups import SHIPPED_SIDES, growing_sides
from flatout.data.pixels.views import SHIPPED, resolve_view
from flatout.decisions.speedups import choose_methods, choose_speedups, speedup_notes
from flatout.errors import ConfigError

AUTO: dict[str, Any] = {"speedups": "auto", "train": {"epochs": 16}, "data": {"batch_size": 128}}


def test_the_sides_are_those_of_the_shipped_views() -> None:
    for name, side in SHIPPED_SIDES.items():
        assert (SHIPPED[name].size, SHIPPED[name].flip) == (side, 0.5)


def test_a_recipe_without_it_is_left_alone() -> None:
    config = load_config({"train": {"epochs": 16}}).config
    assert (config.train.schedule, config.views) == ("cosine", {})
    assert choose_speedups(config).value == {}
    assert speedup_notes(config) == []


def test_what_it_switches_on_and_says() -> None:
    loaded = load_config(AUTO)
    view = resolve_view(loaded.config.data.view, loaded.config.views)
    assert loaded.config.train.schedule == "one-cycle"
    assert view.alternate_flip
    assert [view.side(epoch) for epoch in (0, 5, 6, 10, 11, 15)] == [32, 32, 48, 48, 64, 64]
    assert (view.crop, view.pad, view.flip) == ("pad", 4, 0.5)
    assert loaded.origins["train.schedule"] == "speedups: auto"
    (note,) = speedup_notes(loaded.config)
    assert "train.schedule: a high rate" in note
    assert "48 px from epoch 6" in note


@pytest.mark.parametrize(
    ("key", "value"),
    [("train.schedule", "cosine"), ("views.train-64.alternate_flip", False), ("views.train-64.sizes", {})],
)
def test_each_switch_is_off_again_by_its_key(key: str, value: Any) -> None:
    chosen = choose_speedups(load_config(AUTO, {key: value}).config)
    assert key not in chosen.value
    assert f"set otherwise by the recipe: {key}" in chosen.reason
    assert len(chosen.value) == 2  # the others


def test_the_optimizer_is_the_recipes_own() -> None:
    """None was found that saves time: docs/faster.md."""
    with_it, plain = load_config(AUTO).config.train, load_config({}).config.train
    for key in ("optimizer", "lr", "momentum", "weight_decay"):
        assert getattr(with_it, key) == getattr(plain, key)


@pytest.mark.parametrize("batch", [0, -128, "many"])
def test_a_batch_that_cannot_be_is_refused_by_name(batch: Any) -> None:
    with pytest.raises(ConfigError, match=r"data\.batch_size"):
        load_config({"speedups": "auto", "data": {"batch_size": batch}})


def test_every_method_that_is_on_is_recorded_whoever_switched_it_on() -> None:
    assert choose_methods(load_config({}).config).value == {}
    config = load_config(AUTO, {"train.swa": 0.5, "model.freeze_from": {3: ["conv1"]}}).config
    assert choose_methods(config).value == {
        "train.schedule": "one-cycle",
        "train.swa": 0.5,
        "model.freeze_from": {3: ("conv1",)},
        "views.train-64.sizes": {0: 32, 6: 48, 11: 64},
        "views.train-64.alternate_flip": True,
    }


def test_a_view_of_the_recipe_keeps_its_own_values() -> None:
    recipe = {
        **AUTO,
        "data": {"view": "mine", "batch_size": 128},
        "views": {"mine": {"base": "train-224", "size": 96, "pad": 2}},
    }
    config = load_config(recipe).config
    assert config.views["mine"].sizes == {0: 48, 6: 72, 11: 96}
    assert config.views["mine"].pad == 2
    unfair = load_config({**recipe, "views": {"mine": {"base": "train-64", "flip": 0.0}}}).config
    assert unfair.views["mine"].alternate_flip is None
    raw = load_config({**AUTO, "data": {"view": "raw", "batch_size": 128}}).config
    assert choose_speedups(raw).value == {"train.schedule": "one-cycle"}


@pytest.mark.parametrize("written", [16, 16.0, "16"])
def test_a_number_may_be_written_as_the_checks_read_it(written: Any) -> None:
    """Else the log would say that the recipe sets what nobody has set."""
    recipe = {**AUTO, "train": {"epochs": written}, "views": {"train-64": {"size": type(written)(48)}}}
    chosen = choose_speedups(load_config(recipe).config)
    assert chosen.value["views.train-64.sizes"] == {0: 24, 6: 40, 11: 48}
    assert "set otherwise" not in chosen.reason


def test_a_runs_own_record_loads_back_to_the_same() -> None:
    config = load_config(AUTO, {"views.train-64.alternate_flip": False}).config
    assert load_config(yaml.safe_load(dump_config(config))).config == config


@pytest.mark.parametrize(
    ("side", "epochs", "stride", "wanted"),
    [
        (64, 3, 8, {}),
        (20, 16, 8, {}),
        (24, 16, 8, {0: 16, 6: 24}),
        (64, 4, 8, {0: 32, 2: 48, 3: 64}),
        (64, 16, 32, {}),
        (96, 16, 32, {0: 64, 6: 72, 11: 96}),
        (48, 16, 32, {}),
        (224, 90, 32, {0: 112, 32: 168, 59: 224}),
    ],
)
def test_sides_grow_to_the_whole_and_leave_the_last_layers_something(
    side: int, epochs: int, stride: int, wanted: dict[int, int]
) -> None:
    assert growing_sides(side, epochs, stride) == wanted


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        ({}, {0: 32, 6: 48, 11: 64}),
        ({"stem": "standard"}, None),
        ({"name": "timm:resnet18"}, None),
    ],
)
def test_how_small_pictures_begin_depends_on_the_model(model: dict[str, str], sizes: dict[int, int] | None) -> None:
    assert load_config({**AUTO, "model": model}).config.views["train-64"].sizes == sizes


def test_translation_has_them_without_keys_of_pictures() -> None:
    """What they change there is the precision: tests/unit/decisions/test_compute.py."""
    loaded = load_config({"task": "translation", "speedups": "auto", "data": {"path": "x"}})
    assert loaded.config.train.schedule == "inverse-sqrt"
    assert choose_speedups(loaded.config).value == {}
    assert "speedups: auto" not in loaded.origins.values()
