"""The effective configuration: where values come from, what nothing would use, storing it and comparing it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.loading import config_digest, differences, dump_config, flat, load_config
from flatout.errors import ConfigError

some = settings(max_examples=15, deadline=None)  # a loaded machine is no failure

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml"))


def test_every_value_knows_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("train: {epochs: 3, lr: 0.1}\n")
    loaded = load_config(path, {"train.lr": 0.2})
    assert loaded.config.train.lr == 0.2
    assert loaded.origins["train.lr"] == "--set"
    assert loaded.origins["train.epochs"] == str(path)
    assert loaded.origins["train.momentum"] == "default"
    assert set(loaded.origins) == {key for key, _ in flat(loaded.config)}


def test_setting_a_whole_section_replaces_it_and_its_origins() -> None:
    loaded = load_config({"train": {"lr": 0.1}}, {"train": {"epochs": 3}})
    assert (loaded.config.train.epochs, loaded.origins["train.epochs"]) == (3, "--set")
    assert (loaded.config.train.lr, loaded.origins["train.lr"]) == (0.5, "default")


def test_the_given_recipe_is_not_changed() -> None:
    recipe = {"train": {"epochs": 3}}
    load_config(recipe, {"train.epochs": 5, "data.path": "x"})
    assert recipe == {"train": {"epochs": 3}}


UNUSED = [
    ({"train": {"optimizer": "adamw", "momentum": 0.5}}, "train.momentum", "train.optimizer is sgd"),
    ({"train": {"milestones": [0.1]}}, "train.milestones", "train.schedule is step"),
    ({"train": {"gamma": 0.5}}, "train.gamma", "train.schedule is step"),
    ({"data": {"workers": 0, "prefetch": 4}}, "data.prefetch", "data.workers is not 0"),
    ({"data": {"workers": 0, "worker_kind": "thread"}}, "data.worker_kind", "data.workers is not 0"),
    ({"cost": {"count": 2}}, "cost.count", "cost.instance or cost.usd_per_hour is set"),
    ({"cost": {"usd_per_hour": 1, "spot": True}}, "cost.spot", "cost.instance is set"),
    ({"stop": {"max_usd": 5}}, "stop.max_usd", "cost.instance or cost.usd_per_hour is set"),
]


@pytest.mark.parametrize(("recipe", "key", "when"), UNUSED)
def test_a_key_that_nothing_uses_is_an_error(recipe: dict[str, Any], key: str, when: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe)
    assert str(caught.value).startswith(f"{key} is ")
    assert f"nothing uses it: it takes effect only when {when}" in str(caught.value)


def test_how_to_emulate_may_stay_in_the_recipe_of_another_device_but_is_not_set_for_it() -> None:
    recipe = {"device": "emulated", "emulated": {"base_seconds": 1}}
    assert load_config(recipe, {"device": "auto"}).config.device == "auto"
    with pytest.raises(ConfigError, match="only when device is emulated"):
        load_config(recipe, {"device": "cpu", "emulated.base_seconds": 2})


@pytest.mark.parametrize(
    "recipe",
    [
        {"device": "emulated", "emulated": {"base_seconds": 1}},
        {"train": {"optimizer": "sgd", "momentum": 0.5}},
        {"train": {"schedule": "step", "milestones": [0.1], "gamma": 0.5}},
        {"data": {"workers": 2, "prefetch": 4, "worker_kind": "thread"}},
        {"cost": {"usd_per_hour": 1, "count": 2}, "stop": {"max_usd": 5}},
    ],
)
def test_the_same_keys_are_fine_where_they_are_used(recipe: dict[str, Any]) -> None:
    load_config(recipe)


@pytest.mark.parametrize(
    "recipe",
    [
        {"emulated": {"base_seconds": 0.01}},
        {"train": {"optimizer": "adamw", "momentum": 0.9}},
        {"train": {"gamma": "1e-1"}},
        {"data": {"workers": 0, "prefetch": "auto"}},
        {"cost": {"count": 1, "spot": False}},
    ],
)
def test_an_unused_key_equal_to_its_default_is_fine(recipe: dict[str, Any]) -> None:
    load_config(recipe)


def test_unused_is_found_however_it_was_set() -> None:
    with pytest.raises(ConfigError, match=r"train.momentum is 0.5 but nothing uses it"):
        load_config({}, {"train": {"optimizer": "adamw", "momentum": 0.5}})
    with pytest.raises(ConfigError, match=r"emulated.base_seconds is 1.0 but nothing uses it"):
        load_config({}, {"emulated.base_seconds": 1})


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"train": {"accumulate": 9}, "data": {"batch_size": 8}}, "set train.accumulate to at most 8"),
        ({"train": {"precision": "fp16"}, "device": "cpu"}, "use bf16 or fp32"),
    ],
)
def test_values_that_cannot_go_together_are_refused(recipe: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(recipe)


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
        "device": st.just("emulated"),
        "threads": st.integers(1, 64) | st.just("auto"),
        "data": st.fixed_dictionaries(
            {"path": st.sampled_from(["s3://bucket/a b", "/tmp/é\n", "~/x"])},
            optional={
                "workers": st.integers(1, 16) | st.just("auto"),
                "cache": st.sampled_from(["off", "memory", "auto"]),
                "classes": st.none() | st.integers(1, 5) | st.lists(st.sampled_from(["a", "1", "no"]), min_size=1),
            },
        ),
        "views": st.dictionaries(
            st.sampled_from(["mine", "a.b", "1"]),
            st.fixed_dictionaries(
                {"base": st.just("train-224")},
                optional={
                    "scale": st.just([0.1, 0.9]),
                    "sizes": st.dictionaries(st.integers(0, 90), st.integers(1, 4096)),
                },
            ),
        ),
        "train": st.fixed_dictionaries(
            {},
            optional={"lr": st.floats(1e-9, 100), "compile": st.booleans(), "clip_norm": st.none() | st.floats(0.1, 5)},
        ),
        "stop": st.fixed_dictionaries({}, optional={"max_seconds": st.sampled_from([1, "5 min", "2 h", None])}),
    },
)


@some
@given(SECTIONS)
def test_a_stored_configuration_loads_back_equal(recipe: dict[str, Any]) -> None:
    config = load_config(recipe).config
    again = load_config(yaml.safe_load(dump_config(config))).config
    assert again == config
    assert config_digest(again) == config_digest(config)
    assert differences(config, again) == []


def test_differences_name_key_old_and_new() -> None:
    old = load_config({"train": {"lr": 0.1}, "views": {"mine": {"base": "raw"}}}).config
    new = load_config({"train": {"lr": 0.2}, "data": {"workers": 3}}).config
    assert ("train.lr", 0.1, 0.2) in differences(old, new)
    assert ("data.workers", "auto", 3) in differences(old, new)
    assert ("views.mine.base", "raw", None) in differences(old, new)
    assert "train.epochs" not in [key for key, _, _ in differences(old, new)]


def test_the_digest_follows_what_is_trained_and_not_its_name() -> None:
    digest = config_digest(load_config({"name": "a"}).config)
    assert config_digest(load_config({"name": "b"}).config) == digest
    assert config_digest(load_config({"name": "a", "train": {"seed": 1}}).config) != digest


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_shipped_recipe_loads(path: Path) -> None:
    config = load_config(path).config
    assert load_config(yaml.safe_load(dump_config(config))).config == config


def test_there_are_shipped_recipes() -> None:
    assert RECIPES
