"""What a recipe may hold: keys, types and values; every mistake is one line that names the key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flatout.config.loading import load_config, parse_assignments
from flatout.config.schema import Config, ViewConfig
from flatout.errors import ConfigError


def refused(recipe: dict[str, Any], overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"trian": {"epochs": 3}}, "unknown key trian; did you mean train?"),
        ({"train": {"epohcs": 3}}, "unknown key train.epohcs; did you mean train.epochs?"),
        ({"validate": {"every_epoch": 3}}, "unknown key validate.every_epoch; did you mean validate.every_epochs?"),
        ({"cost": {"coordinator": {"instnce": "a"}}}, "did you mean cost.coordinator.instance?"),
        (
            {"views": {"mine": {"colour_jiter": [0, 0, 0]}}},
            "unknown key views.mine.colour_jiter; did you mean views.mine.colour_jitter?",
        ),
        ({"epochs": 3}, "unknown key epochs; did you mean train.epochs?"),
        ({"batch_size": 3}, "unknown key batch_size; did you mean data.batch_size?"),
        ({"data": {"epochs": 3}}, "unknown key data.epochs; did you mean train.epochs?"),
        ({"validate_": {}}, "unknown key validate_; did you mean validate?"),
        (
            {"model": {"pretrained": True}},
            "unknown key model.pretrained: model.weights says where weights come from",
        ),
        ({"train": {"freeze": "layer1"}}, "unknown key train.freeze; did you mean model.freeze?"),
        ({"frobnicate": 1}, "unknown key frobnicate; known keys here: name, task, task_options, device"),
        ({"data": {"zzz": 1}}, "unknown key data.zzz; known keys here: path, view, eval_view"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(recipe: dict[str, Any], says: str) -> None:
    assert says in refused(recipe)


def test_a_misspelt_key_is_named_before_a_wrong_value() -> None:
    assert "unknown key train.lrr" in refused({"train": {"epochs": "many", "lrr": 1}})


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"train": {"epochs": "many"}}, "train.epochs is 'many'"),
        ({"train": {"epochs": 0}}, "train.epochs is 0: input should be greater than or equal to 1"),
        ({"train": {"epochs": 1.5}}, "train.epochs is 1.5"),
        ({"train": {"lr": float("nan")}}, "train.lr is nan"),
        ({"train": {"seed": -1}}, "train.seed is -1"),
        ({"train": {"milestones": ["x"]}}, "train.milestones is 'x'"),
        ({"train": 5}, "train is 5"),
        ({"train": None}, "train is None"),
        ({"data": {"workers": "many"}}, "data.workers is 'many'"),
        ({"data": {"workers": -1}}, "data.workers is -1"),
        ({"data": {"holdout": 1}}, "data.holdout is 1"),
        ({"device": "gpu"}, "device is 'gpu': input should be 'auto', 'cpu', 'cuda', 'mps' or 'emulated'"),
        ({"stop": {"max_seconds": "5 parsecs"}}, "stop.max_seconds is '5 parsecs': '5 parsecs' is not a duration"),
        ({"stop": {"max_seconds": [1]}}, "stop.max_seconds is [1]"),
        ({"stop": {"max_seconds": 0}}, "stop.max_seconds is 0"),
        ({"cost": {"usd_per_hour": 1, "disk": {"bytes": float("inf")}}}, "cost.disk.bytes is inf"),
        ({"views": {"mine": {"crop": "middle"}}}, "views.mine.crop is 'middle'"),
        ({"views": {"mine": 5}}, "views.mine is 5"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(recipe: dict[str, Any], says: str) -> None:
    assert says in refused(recipe)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        ({"scale": [0, 1]}, "views.mine.scale is 0"),
        ({"scale": [0.5, 2]}, "views.mine.scale is 2"),
        ({"scale": [1, 0.5]}, "the smallest comes first"),
        ({"ratio": [0, 1]}, "views.mine.ratio is 0"),
        ({"ratio": [2, 1]}, "the smallest comes first"),
        ({"std": [0.2, 0, 0.2]}, "views.mine.std is 0"),
        ({"mean": [0.5, 0.5, 128]}, "views.mine.mean is 128"),
        ({"colour_jitter": [0.4, -0.4, 0.4]}, "views.mine.colour_jitter is -0.4"),
        ({"sizes": {0: 0}}, "views.mine.sizes is 0"),
        ({"sizes": {-1: 32}}, "views.mine.sizes is '-1'"),
        ({"sizes": {"x": 32}}, "views.mine.sizes is 'x'"),
        ({"size": 5000}, "views.mine.size is 5000"),
    ],
)
def test_a_view_that_no_image_could_go_through_is_refused(view: dict[str, Any], says: str) -> None:
    assert says in refused({"views": {"mine": {"base": "train-224", **view}}})


@pytest.mark.parametrize("value", ["False", "false", "no", 0, 1, None])
def test_a_boolean_is_only_a_boolean(value: object) -> None:
    assert f"train.compile is {value!r}" in refused({"train": {"compile": value}})


@pytest.mark.parametrize(
    ("section", "key"),
    [("train", "epochs"), ("train", "lr"), ("train", "clip_norm"), ("data", "workers"), ("data", "classes"),
     ("stop", "max_seconds"), ("stop", "patience_epochs")],
)  # fmt: skip
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_not_taken_for_the_number_one(section: str, key: str, value: bool) -> None:
    assert f"{section}.{key} is {value}: input should be a number, not a boolean" in refused({section: {key: value}})


def test_set_reads_values_as_yaml() -> None:
    given = parse_assignments(
        ["train.compile=false", "train.epochs=3", "data.classes=[a, b]", "name=x=y", "train.ema="]
    )
    assert given == {
        "train.compile": False, "train.epochs": 3, "data.classes": ["a", "b"], "name": "x=y", "train.ema": None,
    }  # fmt: skip
    config = load_config({"train": {"compile": True, "ema": 0.9}}, given).config
    assert config.train.compile is False
    assert config.train.ema is None


@pytest.mark.parametrize("text", ["train.epochs", "=3", " =3", ""])
def test_set_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write --set key=value"):
        parse_assignments([text])


def test_set_with_broken_yaml_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="not valid YAML") as caught:
        parse_assignments(["data.classes=[a, b"])
    assert "\n" not in str(caught.value)


def test_set_cannot_go_inside_a_value() -> None:
    assert refused({"name": "x"}, {"name.first": 1}) == "name.first cannot be set: name is the value 'x', not a section"


@pytest.mark.parametrize("key", ["cache", "stage", "shared"])
def test_yaml_off_is_the_word_off(tmp_path: Path, key: str) -> None:
    (tmp_path / "recipe.yaml").write_text(f"data: {{{key}: off}}")
    assert getattr(load_config(tmp_path / "recipe.yaml").config.data, key) == "off"


def test_on_is_refused_where_it_means_nothing() -> None:
    assert "data.cache is 'on': input should be 'off', 'memory', 'disk' or 'auto'" in refused({"data": {"cache": True}})


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "train: {weight_decay: 5e-4, lr: 1e-2}\nstop: {max_seconds: 5 min}\nname: 40\n"
    )
    config = load_config(tmp_path / "recipe.yaml").config
    assert (config.train.weight_decay, config.train.lr) == (5e-4, 0.01)
    assert config.stop.max_seconds == 300
    assert config.name == "40"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no keys"),
        ("# only a comment\n", "holds no keys"),
        ("- a\n- b\n", "holds no keys"),
        ("train: {epochs: 3", "is not valid YAML"),
        ("train:\n\tepochs: 3\n", "is not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe at .*missing\.yaml; see recipes/"):
        load_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "binary.yaml")


def undocumented(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        if not field.description:
            yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from undocumented(field.annotation, f"{prefix}{name}.")


def test_every_key_says_what_it_does() -> None:
    assert [*undocumented(Config), *undocumented(ViewConfig)] == []
