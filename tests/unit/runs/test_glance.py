"""Many runs at a glance: what a list says of each, from small files, and never out of its folders."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import RunDirectoryError
from flatout.runs.directory import RunDirectory
from flatout.runs.glance import RunIndex


def make_run(folder: Path, host: str = "elsewhere", **summary: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("name: x\ntrain: {lr: 0.5}\n")
    (folder / "env.json").write_text(json.dumps({"host": host}))
    (folder / "summary.json").write_text(json.dumps({"run": folder.name, **summary}))
    return folder


def status_of(index: RunIndex, name: str) -> str:
    return next(each.status for each in index.refresh() if each.directory.name == name)


def test_runs_and_the_runs_of_suites_are_found_by_keys(tmp_path: Path) -> None:
    make_run(tmp_path / "a", status="completed")
    make_run(tmp_path / "suite" / "b", status="stopped")
    (tmp_path / "not-a-run").mkdir()
    index = RunIndex([tmp_path])
    assert {each.key for each in index.refresh()} == {"0/a", "0/suite/b"}
    assert index.find("0/suite/b").status == "stopped"
    assert RunIndex([tmp_path / "a"]).refresh()[0].key == "0/."


@pytest.mark.parametrize("key", ["0/../secret", "0//etc", "1/a", "", "0/a/../../secret", "0/a\x00"])
def test_no_key_leads_out_of_the_folders(tmp_path: Path, key: str) -> None:
    make_run(tmp_path / "runs" / "a", status="completed")
    make_run(tmp_path / "secret", status="completed")
    with pytest.raises(RunDirectoryError):
        RunIndex([tmp_path / "runs"]).find(key)


def test_running_is_who_holds_the_lock_or_writes_from_another_machine(tmp_path: Path) -> None:
    here = make_run(tmp_path / "here", platform.node(), status="running")
    make_run(tmp_path / "killed", platform.node(), status="running")
    there = make_run(tmp_path / "there", "another-machine", status="running")
    index, lock = RunIndex([tmp_path]), RunDirectory(here)
    lock.lock()
    try:
        found = {each.directory.name: each.status for each in index.refresh()}
        assert found == {"here": "running", "killed": "failed", "there": "running"}
        assert lock.owner() == os.getpid()
        assert RunDirectory(tmp_path / "killed").owner() is None
    finally:
        lock.unlock()
    old = time.time() - 3600
    os.utime(there / "summary.json", (old, old))
    assert status_of(index, "there") == "failed"
    assert status_of(index, "here") == "failed"


def test_the_number_of_another_process_in_a_lock_is_not_its_owner(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", status="running")
    (run / "lock").write_text("1\n")  # init: alive, but it does not hold this file
    assert RunDirectory(run).owner() is None
    (run / "lock").write_text("what\n")
    assert RunDirectory(run).owner() is None


@pytest.mark.parametrize("damage", ["{", "[1]", '{"status": 3}', '{"time": "long"}', ""])
def test_a_damaged_run_is_a_row_that_says_so_and_recovers(tmp_path: Path, damage: str) -> None:
    run = make_run(tmp_path / "bad", platform.node(), status="completed")
    make_run(tmp_path / "good", status="completed")
    index = RunIndex([tmp_path])
    (run / "summary.json").write_text(damage)
    found = {each.directory.name: each for each in index.refresh()}
    assert found["good"].status == "completed"
    assert found["bad"].status == "failed"
    (run / "summary.json").write_text(json.dumps({"status": "completed"}))
    assert status_of(index, "bad") == "completed"


def test_a_run_that_is_gone_is_not_listed_and_configs_are_read_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", status="completed")
    index = RunIndex([tmp_path])
    (glance,) = index.refresh()
    assert index.known_config(glance) is None
    assert index.config(glance)["train"] == {"lr": 0.5}
    assert index.known_config(glance) is not None
    (run / "config.yaml").unlink()
    assert index.refresh() == []
    with pytest.raises(RunDirectoryError, match="no run '0/a'"):
        index.find("0/a")


def test_what_did_not_change_is_not_read_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, status="completed")
    index = RunIndex([tmp_path])
    before = {each.key: each for each in index.refresh()}
    assert index.config(before["0/a"])["train"] == {"lr": 0.5}
    (tmp_path / "b" / "summary.json").write_text(json.dumps({"run": "b", "status": "failed", "cause": "why"}))
    after = {each.key: each for each in index.refresh()}
    assert after["0/a"] is before["0/a"]
    assert after["0/b"].cause == "why"
    assert index.known_config(after["0/a"]) is not None


def test_many_runs_are_read_piece_by_piece_the_newest_first(tmp_path: Path) -> None:
    for number in range(5):
        run = make_run(tmp_path / f"run-{number}", status="completed")
        os.utime(run / "summary.json", (1000 + number, 1000 + number))
    index = RunIndex([tmp_path])
    seen = []
    for left in (4, 3, 2, 1, 0, 0):
        seen = [each.directory.name for each in index.refresh(most_seconds=-1.0)]
        assert index.unread == left
    assert seen == [f"run-{number}" for number in (4, 3, 2, 1, 0)]


def test_another_run_under_the_same_name_has_its_own_recipe(tmp_path: Path) -> None:
    make_run(tmp_path / "a", status="completed")
    index = RunIndex([tmp_path])
    index.config(index.refresh()[0])
    (tmp_path / "a" / "config.yaml").write_text("name: other\ntrain: {lr: 0.25}\n")
    (tmp_path / "a" / "summary.json").write_text(json.dumps({"run": "a", "status": "stopped"}))
    assert index.config(index.refresh()[0])["train"] == {"lr": 0.25}
