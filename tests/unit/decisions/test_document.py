"""resolved.json: attempts and changes are only ever appended, and whatever lies there instead says nothing."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.decisions import Change, Choice, Resolved
from flatout.decisions.document import most_of, read_decisions, with_attempt, with_changes
from flatout.decisions.older_runs import assume

OTHER = assume({"data": {"path": "s3://b/x", "workers": 7, "global_batch": 64}}, "cuda", 9, 2)
FIRST = assume({"data": {"path": "x", "batch_size": 8}}, "cpu", 2, 1)


def with_workers(resolved: Resolved, count: int) -> Resolved:
    return replace(resolved, data=replace(resolved.data, workers=Choice(count, "why", "auto")))


def as_read(document: dict[str, Any]) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


def test_what_was_decided_comes_back() -> None:
    document = as_read(with_attempt({}, FIRST, 1, 0, 100.0))
    assert read_decisions(document, OTHER) == FIRST
    assert document["attempts"][0]["decided"]["data"]["workers"]["reason"]


def test_an_attempt_and_a_change_are_appended_to_what_is_there() -> None:
    document = as_read(with_attempt({}, with_workers(FIRST, 2), 1, 0, 100.0))
    changes = [Change("data.workers", 5, "idle cores"), Change("data.prefetch", 10, "follows")]
    document = as_read(with_changes(document, changes, 1, 40, 101.0))
    document = as_read(with_changes(document, [Change("data.workers", 3, "no core left")], 1, 80, 102.0))
    now = read_decisions(document, OTHER)
    assert (now.data.workers.value, now.data.workers.reason, now.data.prefetch.value) == (3, "no core left", 10)
    assert most_of("data.workers", document, now) == 5
    before = as_read(document)
    document = as_read(with_attempt(document, with_workers(FIRST, 4), 2, 90, 200.0))
    assert document["attempts"][:1] == before["attempts"]
    assert document["changes"] == before["changes"]
    assert [(each["attempt"], each["step"], each["time_unix"]) for each in document["changes"]] == [
        (1, 40, 101.0), (1, 40, 101.0), (1, 80, 102.0),
    ]  # fmt: skip
    resumed = read_decisions(document, OTHER)
    assert resumed.data.workers.value == most_of("data.workers", document, resumed) == 4


def test_a_job_that_went_on_alone_has_the_decisions_of_its_own_loader() -> None:
    document = with_attempt({}, FIRST, 1, 0, 100.0)
    alone = as_read({"data": OTHER.to_dict()["data"]})["data"]
    alone["cache"] = {"wanted": "auto", "value": "memory", "reason": "all"}
    document = as_read(with_changes(document, [Change("data", alone, "alone")], 1, 5, 101.0))
    now = read_decisions(document, FIRST)
    assert (now.data.remote.value, now.data.workers.value, now.data.fetchers.value) == (True, 7, 4)
    assert now.data.cache is not None
    assert now.data.cache.value == "memory"


def test_a_run_before_there_were_attempts_kept_its_cache_alone() -> None:
    told = {"cache": {"wanted": "auto", "tier": "off", "reason": "off, never pays", "crop_seconds": 0.001}}
    decided = read_decisions(told, OTHER)
    assert decided.data.cache is not None
    assert (decided.data.cache.value, decided.data.cache.declined) == ("off", True)
    assert replace(decided, data=replace(decided.data, cache=None)) == OTHER
    assert read_decisions({}, OTHER) == OTHER


@pytest.mark.parametrize(
    ("section", "key", "told"),
    [
        ("data", "workers", {"value": "many", "reason": "of another kind"}),
        ("data", "workers", {"value": True, "reason": "a flag is no number"}),
        ("data", "workers", {"value": 3}),
        ("data", "remote", {"value": 1, "reason": "a number is no flag"}),
        ("data", "stage", ["a list"]),
        ("train", "precision", {"value": 16, "reason": "bits"}),
    ],
)
def test_a_choice_of_another_shape_leaves_the_assumption(section: str, key: str, told: Any) -> None:
    document = as_read(with_attempt({}, FIRST, 1, 0, 100.0))
    document["attempts"][0]["decided"][section][key] = told
    assert read_decisions(document, OTHER).find(f"{section}.{key}") == OTHER.find(f"{section}.{key}")
    assert read_decisions(document, OTHER).threads == FIRST.threads


_NAMES = st.sampled_from(["attempts", "attempt", "changes", "decided", "data", "cache", "workers", "value", "key"])
_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | _NAMES | st.just("data.workers"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(told=st.dictionaries(st.sampled_from(["attempts", "changes", "cache", "version"]), _JSON))
def test_no_document_is_an_error(told: dict[str, Any]) -> None:
    decided = read_decisions(told, OTHER)
    assert isinstance(decided.data.workers.value, int)
    assert isinstance(most_of("data.workers", told, decided), int)
