"""resolved.json grows with the run: what a loader decides anew is appended once, and a full disk ends nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.decisions import Change
from flatout.decisions.older_runs import assume
from flatout.runs import RunDirectory
from flatout.training import decided
from flatout.training.decided import DecisionRecords

RESOLVED = assume({"data": {"path": "x"}}, "cpu", 2, 1)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def told(directory: RunDirectory) -> Any:
    return json.loads(directory.resolved.read_text())


def source() -> Any:
    return SimpleNamespace(changes=[])


def test_changes_are_appended_once_with_time_step_and_attempt(directory: RunDirectory) -> None:
    records, loader = DecisionRecords(directory), source()
    records.follow(loader, 1)  # nothing before it begins
    records.write()
    assert not directory.resolved.exists()
    records.begin(RESOLVED, 3, 20)
    loader.changes.append(Change("data.workers", 2, "idle cores"))
    for step in (21, 22):
        records.follow(loader, step)
    loader.changes.append(Change("data.workers", 1, "no core left"))
    records.follow(loader, 30)
    changes = told(directory)["changes"]
    assert [(each["attempt"], each["step"], each["value"]) for each in changes] == [(3, 21, 2), (3, 30, 1)]
    assert changes[0]["time_unix"] <= changes[1]["time_unix"]


def test_a_later_attempt_finds_what_an_earlier_one_wrote(directory: RunDirectory) -> None:
    first, loader = DecisionRecords(directory), source()
    first.begin(RESOLVED, 1, 0)
    loader.changes.append(Change("data.workers", 2, "idle cores"))
    first.follow(loader, 5)
    before = told(directory)
    DecisionRecords(directory).begin(RESOLVED, 2, 6)
    after = told(directory)
    assert after["attempts"][0] == before["attempts"][0]
    assert after["changes"] == before["changes"]
    assert [each["attempt"] for each in after["attempts"]] == [1, 2]


def test_a_full_disk_ends_no_run(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    records, loader = DecisionRecords(directory), source()
    records.begin(RESOLVED, 1, 0)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(decided, "write_json", full)
        loader.changes.append(Change("data.workers", 2, "idle cores"))
        records.follow(loader, 5)
    loader.changes.append(Change("data.workers", 1, "no core left"))
    records.follow(loader, 6)
    assert [each["value"] for each in told(directory)["changes"]] == [2, 1]  # nothing is lost once there is room


@pytest.mark.parametrize("text", ["{", "[]", '{"attempts": 7, "changes": {}}', '{"cache": {"tier": "off"}}'])
def test_a_file_that_cannot_be_kept_is_written_anew(directory: RunDirectory, text: str) -> None:
    directory.resolved.write_text(text)
    DecisionRecords(directory).begin(RESOLVED, 2, 6)
    assert [each["attempt"] for each in told(directory)["attempts"]] == [2]
    assert told(directory)["changes"] == []
