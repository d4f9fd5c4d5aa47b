"""A real run writes down what every `auto` of its recipe became, and why; going on appends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from flatout.commands.train import train_run
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.decisions.document import read_decisions
from flatout.decisions.older_runs import assume
from flatout.diagnosis.reading import read_signals
from flatout.runs import read_run
from training import recipe


def auto_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the schema that may say auto."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from auto_keys(field.annotation, f"{key}.")
        elif "auto" in words(field.annotation) or field.default == "auto" or "auto" in str(field.metadata):
            yield key


def words(annotation: Any) -> set[str]:
    inner = get_args(annotation)
    return set().union(*map(words, inner)) if inner else {annotation} if isinstance(annotation, str) else set()


def test_the_schema_is_looked_through() -> None:
    found = set(auto_keys(Config))
    assert found >= {"device", "threads", "data.workers", "data.cache", "data.stage", "data.shared", "train.precision"}
    assert len(found) == 16


@pytest.fixture(scope="module")
def run(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decided") / "run"
    train_run(recipe(samples, data__workers="auto", device="auto", train__max_steps=3), run=folder)
    return folder


def told(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "resolved.json").read_text())
    return values


def find(decided: dict[str, Any], key: str) -> dict[str, Any]:
    found: Any = decided
    for name in key.split("."):
        found = found[name]
    return dict(found)


def test_every_auto_is_resolved_with_a_reason(run: Path) -> None:
    (attempt,) = told(run)["attempts"]
    config = load_config(run / "config.yaml").config.model_dump(mode="json", by_alias=True)
    for key in auto_keys(Config):
        choice = find(attempt["decided"], key)
        assert choice["reason"], key
        assert choice["value"] != "auto", key
        if key != "train.precision":  # of which config.yaml says what it became
            assert choice["wanted"] in (find_value(config, key), None), key
    assert attempt["decided"]["train"]["precision"]["wanted"] in ("auto", "fp32")


def find_value(config: dict[str, Any], key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = found[name]
    return found


def test_the_rest_is_there_too(run: Path) -> None:
    (attempt,) = told(run)["attempts"]
    decided = attempt["decided"]
    assert (attempt["attempt"], attempt["step"]) == (1, 0)
    assert decided["batch"]["unit"] in ("samples", "tokens")
    assert decided["train"]["optimizer"]["value"]["name"] == load_config(run / "config.yaml").config.train.optimizer
    assert decided["data"]["remote"]["value"] is False
    assert decided["data"]["fetchers"]["value"] == 0


def test_readers_take_it_from_there(run: Path) -> None:
    document = told(run)
    wrong = assume({"data": {"path": "s3://b/x", "workers": 7, "worker_kind": "process"}}, "cuda", 9, 1)
    decided, signals = read_decisions(document, wrong), read_signals(read_run(run))
    assert (signals.input.workers, signals.input.remote, signals.input.fetchers) == (
        decided.data.workers.value,
        False,
        0,
    )
    document["attempts"][0]["decided"]["data"] |= {
        "remote": {"value": True, "reason": "a mount of a store"},
        "fetchers": {"value": 4, "reason": "remote"},
        "stage": {"value": "off", "reason": "does not fit", "wanted": "auto", "remote": True},
    }
    (run / "resolved.json").write_text(json.dumps(document))
    signals = read_signals(read_run(run))
    found = signals.input
    assert (found.remote, found.fetchers, found.staged) == (True, 4, False)  # though its path is a folder


def test_going_on_appends(run: Path, samples: Path) -> None:
    before = told(run)
    train_run(recipe(samples, data__workers=1, device="auto", train__max_steps=5), run=run)
    after = told(run)
    assert after["attempts"][:-1] == before["attempts"]
    assert (after["attempts"][-1]["attempt"], after["attempts"][-1]["step"]) == (2, 3)
    assert after["attempts"][-1]["decided"]["data"]["workers"]["wanted"] == 1


def test_a_run_without_decisions_is_still_read(run: Path) -> None:
    (run / "resolved.json").unlink()
    found = read_signals(read_run(run)).input
    assert (found.workers, found.remote, found.staged, found.cache_choice) == (1, False, False, None)
    (run / "resolved.json").write_text("[]")
    assert read_signals(read_run(run)).recipe.batch_size >= 1
