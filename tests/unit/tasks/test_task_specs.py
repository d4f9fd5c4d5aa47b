"""One place names the tasks: everybody else asks their specs."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import flatout
from flatout.config.loading import flat, load_config
from flatout.config.schema import Config
from flatout.config.tasks import DEFAULT_TASK, METRICS, TASKS, TaskSpec, spec_of
from flatout.errors import ConfigError

SOURCE = Path(flatout.__file__).parent


def test_only_the_specs_name_a_task() -> None:
    named = re.compile("|".join(f"""["']{name}["']""" for name in TASKS))
    found = [str(path) for path in SOURCE.rglob("*.py") if named.search(path.read_text(encoding="utf-8"))]
    assert found == [str(SOURCE / "config" / "tasks.py")]


@pytest.mark.parametrize("spec", TASKS.values(), ids=TASKS)
def test_a_task_has_a_package_and_keys_of_the_schema(spec: TaskSpec) -> None:
    assert callable(import_module(f"flatout.tasks.{spec.name}.opening").open_task)
    assert set(spec.metrics) <= METRICS.keys()
    known = [key for key, _ in flat(Config())]
    for key in (*spec.keys, *spec.batch_keys, *spec.defaults):
        assert any(f"{each}.".startswith(f"{key}.") for each in known), key


def test_a_task_decides_what_a_batch_is() -> None:
    images = load_config({"data": {"batch_size": 32}}).config
    assert (images.batch_key, images.batch_setting) == ("data.batch_size", 32)
    several = load_config({"data": {"global_batch": 64}}).config
    assert (several.batch_key, several.batch_setting) == ("data.global_batch", 64)
    text = load_config({"task": "translation", "data": {"batch_tokens": 500}}).config
    assert (text.batch_key, text.batch_setting) == ("data.batch_tokens", 500)
    assert (text.checkpoint.metric, text.train.optimizer) == ("bleu", "adamw")


def test_old_and_foreign_runs_count_as_the_default_task() -> None:
    assert {spec_of(each).name for each in (None, "of-tomorrow", 3)} == {DEFAULT_TASK}
    assert [METRICS[name].better for name in ("top1", "bleu", "val_loss")] == ["higher", "higher", "lower"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task": "x"}, "task is 'x': input should be 'classification' or 'translation'"),
        (
            {"checkpoint": {"metric": "x"}},
            "checkpoint.metric is x, but classification has top1, top5, val_loss, train_loss",
        ),
        ({"checkpoint": {"metric": "bleu"}}, "checkpoint.metric is bleu, but classification has top1, top5"),
        ({"task": "translation", "device": "emulated"}, "its steps depend on sentence lengths; use cpu or cuda"),
        ({"task": "translation", "data": {"stage": "off"}}, "it takes effect only when task is classification"),
    ],
)
def test_what_a_task_does_not_have_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(values)
