"""kill -9 and money: what a run cost up to the kill is known once anyone looks, and its next attempt adds to it."""

import json
from pathlib import Path

import pytest

from training import STEPS_PER_EPOCH, command, row_count, start, summary, wait_until, write_recipe

USD_PER_HOUR = 3.6


def test_a_killed_run_is_summed_up_and_billed_and_the_next_attempt_adds(work: Path, shapes: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, cost={"usd_per_hour": USD_PER_HOUR})
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: row_count(run) >= STEPS_PER_EPOCH + 5 or not running.running, "the second epoch")
    running.kill()
    last_word, last_cost = summary(run), (run / "cost.json").read_text()  # written at the end of the first epoch
    assert last_word["status"] == "running"

    (killed,) = json.loads(command("runs", "--json", cwd=work).out)
    assert killed["status"] == "failed"
    assert summary(run) == last_word  # who looks does not write
    assert killed["samples_seen"] > last_word["samples_seen"]
    assert killed["time"]["wall_seconds"] > 0
    assert killed["time"]["parts"]["validation"] >= last_word["time"]["parts"]["validation"] - 1e-3
    assert sum(killed["time"]["parts"].values()) == pytest.approx(killed["time"]["wall_seconds"], rel=1e-3)
    assert killed["throughput"]["samples_per_second"] > 0
    assert killed["cost"]["total_usd"] == pytest.approx(killed["time"]["wall_seconds"] / 3600 * USD_PER_HOUR)
    assert (run / "cost.json").read_text() == last_cost
    (finding,) = [
        each
        for each in json.loads(command("explain", run, "--json", cwd=work).out)["findings"]
        if each["id"] == "failed"
    ]
    assert "killed" in finding["title"]

    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    ended = summary(run)
    assert (ended["status"], ended["attempts"]) == ("completed", 2)
    assert ended["time"]["wall_seconds"] > killed["time"]["wall_seconds"]
    assert ended["cost"]["total_usd"] == pytest.approx(ended["time"]["wall_seconds"] / 3600 * USD_PER_HOUR)
    assert json.loads((run / "cost.json").read_text()) == ended["cost"]
