"""A suite's file: which experiments it means, in which order, and what is wrong with it in one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.config.loading import load_config
from flatout.config.suite import Suite, load_suite
from flatout.errors import ConfigError

RECIPES = Path(__file__).parents[3] / "recipes"


def suite(tmp_path: Path, values: dict[str, Any] | str, **overrides: Any) -> Suite:
    (tmp_path / "base.yaml").write_text("train: {epochs: 1}\n")
    text = values if isinstance(values, str) else yaml.safe_dump({"recipe": "base.yaml", **values})
    (tmp_path / "mine.yaml").write_text(text)
    return load_suite(tmp_path / "mine.yaml", overrides)


def test_variants_matrix_and_repeats_in_rounds(tmp_path: Path) -> None:
    found = suite(
        tmp_path,
        {
            "set": {"train.epochs": 2},
            "variants": [{"name": "a", "comment": "why"}, {"name": "b", "set": {"train.lr": 0.1}}],
            "matrix": {"data.workers": [0, 2]},
            "repeats": 2,
        },
        **{"data.path": "x"},
    )
    one_round = ["a workers=0", "a workers=2", "b workers=0", "b workers=2"]
    assert [each.name for each in found.experiments] == one_round * 2
    assert [each.folder for each in found.experiments][:5] == [
        "a-workers=0-1", "a-workers=2-1", "b-workers=0-1", "b-workers=2-1", "a-workers=0-2",
    ]  # fmt: skip
    assert found.experiments[3].overrides == {
        "train.epochs": 2, "train.lr": 0.1, "data.workers": 2, "data.path": "x",
    }  # fmt: skip
    assert found.experiments[0].comment == "why"
    assert (found.name, found.recipe) == ("mine", tmp_path / "base.yaml")


def test_keys_that_end_alike_are_named_in_full(tmp_path: Path) -> None:
    found = suite(tmp_path, {"matrix": {"data.batch_size": [8], "validate.batch_size": [16]}})
    assert [each.name for each in found.experiments] == ["data.batch_size=8 validate.batch_size=16"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("", "holds no keys"),
        ("a: [", "is not valid YAML"),
        ({"variants": []}, "neither variants nor a matrix"),
        ({"recipe": "none.yaml", "variants": [{"name": "a"}]}, "no recipe at"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "two experiments are called 'a'"),
        ({"variants": [{"name": "a/b"}, {"name": "a b"}]}, "two experiments are called 'a-b'"),
        ({"variants": [{"nam": "a"}]}, "unknown key variants.0.nam; known keys here: name, set, comment"),
        ({"varants": []}, "unknown key varants; known keys here: name, recipe"),
        ({"variants": [{"name": "a"}], "repeats": 0}, "repeats"),
        ({"matrix": {"data.workers": 3}}, "matrix.data.workers"),
        ({"matrix": {"data.path": ["x", "y"]}}, "--set data.path would make the experiments"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, values: dict[str, Any] | str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        suite(tmp_path, values, **{"data.path": "z"})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_suite_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no suite at"):
        load_suite(tmp_path / "none.yaml", {})


@pytest.mark.parametrize("path", sorted((RECIPES / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_suite_is_made_of_configurations_that_load(path: Path) -> None:
    found = load_suite(path, {"data.path": "somewhere"})
    assert len(found.experiments) > 1
    for experiment in found.experiments:
        load_config(found.recipe, experiment.overrides)
