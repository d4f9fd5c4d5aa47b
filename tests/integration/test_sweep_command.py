"""A sweep through kill -9 and Ctrl-C to its winner, as a user does it."""

import json
import signal
from pathlib import Path

import pytest
import yaml

from flatout.commands.sweep import run_sweep
from flatout.commands.training_processes import LocalJob
from training import (
    assert_same_training,
    command,
    make_sentences,
    recipe,
    row_count,
    start,
    summary,
    wait_until,
    write_recipe,
)  # fmt: skip

RATES = ("--over", "train.lr=0.05,0.001,1.0e+30,0.02")  # one of them comes to nothing
RAY = ("--ray", "local")
QUICK = {"checkpoint__every_steps": None, "data__cache": "off"}


def job(folder: Path, number: int) -> Path:
    (found,) = folder.glob(f"{number:02d}-*")
    return found


def test_one_that_was_killed_decides_as_one_that_was_not(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes, train__epochs=4, **QUICK)
    whole = command("sweep", "tiny.yaml", *RATES, "--runs", "whole", "--json", cwd=work)
    assert whole.code == 0, whole.err
    told = json.loads(whole.out)
    assert (told["rungs"], told["complete"]) == ([1, 2, 4], True)
    causes = {row["name"]: row["cause"] for row in told["rows"]}
    assert causes.pop("lr=1e+30")
    assert set(causes.values()) == {None}
    assert told["rows"][-1]["name"] == "lr=1e+30"
    assert told["epochs_trained"] < told["epochs_whole"] == 16
    assert [summary(job(work / "whole", n)).get("shared", {}).get("hits", 0) > 0 for n in (1, 2, 4)] == [True] * 3

    killed = start("sweep", "tiny.yaml", *RATES, "--runs", "killed", cwd=work)
    wait_until(
        lambda: any(row_count(each) >= 5 for each in (work / "killed").glob("0*")) or not killed.running, "steps"
    )
    killed.kill()
    again = command("sweep", "tiny.yaml", *RATES, "--runs", "killed", "--json", cwd=work)
    assert again.code == 0, again.err
    after = json.loads(again.out)
    assert [(row["name"], row["values"]) for row in after["rows"]] == [(r["name"], r["values"]) for r in told["rows"]]
    assert after["winner"] == told["winner"]
    best = next(n for n in (1, 2, 4) if told["winner"] in job(work / "whole", n).name.replace("-", " ", 1))
    assert_same_training(job(work / "killed", best), job(work / "whole", best))

    # the winner is the same run as without a sweep, and its recipe trains
    values = yaml.safe_load((work / "whole/winner.yaml").read_text())
    assert f"lr={values['train']['lr']}" == told["winner"]
    done = command("train", "whole/winner.yaml", "--set=threads=1", "--run", "alone", cwd=work)
    assert done.code == 0, done.err
    assert_same_training(work / "alone", job(work / "whole", best))
    assert "<h1>" in (work / "whole/sweep.html").read_text()
    # what is decided is not trained again
    rows = row_count(job(work / "whole", best))
    assert command("sweep", "tiny.yaml", *RATES, "--runs", "whole", cwd=work).code == 0
    assert row_count(job(work / "whole", best)) == rows
    other = command("sweep", "tiny.yaml", "--over", "train.lr=0.1,0.2", "--runs", "whole", cwd=work)
    assert (other.code, "holds another sweep" in other.error_line) == (2, True)


def test_ctrl_c_saves_and_the_same_command_goes_on(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes, train__epochs=100, **QUICK)
    words = ("sweep", "tiny.yaml", "--over", "train.lr=0.05,0.01", "--rungs", "100", "--runs", "mine")
    running = start(*words, cwd=work)
    wait_until(lambda: any(row_count(each) >= 3 for each in (work / "mine").glob("0*")) or not running.running, "steps")
    running.send(signal.SIGINT)
    stopped = running.wait()
    assert stopped.code == 130, stopped.err
    assert "the same command goes on" in stopped.last_line
    assert {summary(each)["status"] for each in (work / "mine").glob("0*") if (each / "summary.json").exists()} == {
        "stopped"
    }


def test_a_budget_ends_it_with_the_best_so_far(work: Path, shapes: Path) -> None:
    write_recipe(work / "tiny.yaml", shapes, train__epochs=2000, cost={"usd_per_hour": 3600.0}, **QUICK)
    words = ("sweep", "tiny.yaml", "--over", "train.lr=0.05,0.01", "--rungs", "1,2000", "--budget", "12usd", "--json")
    done = command(*words, cwd=work)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["complete"], told["budget"]) == (False, "$12.00")
    assert told["spent_usd"] >= 12.0


def test_translation_by_bleu_on_two_ranks(work: Path, tmp_path: Path) -> None:
    data = make_sentences(tmp_path / "text", pairs=40, val_pairs=6)
    two = {"parallel": {"mode": "ddp", "devices": 2, "preflight": False}}
    write_recipe(work / "tiny.yaml", data, train__epochs=2, checkpoint__every_steps=None, **two)
    done = command(
        "sweep", "tiny.yaml", "--over", "train.lr=0.01,0.0001", "--metric", "bleu", "--jobs", 1, "--json", cwd=work
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["metric"], told["complete"], len(told["rows"][0]["values"])) == ("bleu", True, 2)
    assert {summary(job(work / "runs/tiny-sweep", n))["world_size"] for n in (1, 2)} == {2}


def test_each_job_has_a_card_of_its_own(work: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cards are named, though torch sees none here: `device: auto` trains on the CPU then."""
    given: list[dict[str, str]] = []

    def launch(arguments: list[str], environment: dict[str, str]) -> LocalJob:
        given.append(dict(environment))
        return LocalJob(arguments, environment)

    write_recipe(work / "tiny.yaml", shapes, device="auto", train__epochs=1, **QUICK)
    monkeypatch.setattr("flatout.commands.sweep.LocalJob", launch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    monkeypatch.chdir(work)
    done = run_sweep(Path("tiny.yaml"), {"rungs": [1]}, ["train.lr=0.05,0.01"], Path("mine"), False, True)
    assert (done.winner is not None, done.epochs_trained) == (True, 2)
    assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in given) == ["GPU-a", "GPU-b"]


def test_on_a_ray_cluster(work: Path, shapes: Path) -> None:
    """The same decisions and bits; Ctrl-C saves checkpoints; a folder that no machine sees is said."""
    pytest.importorskip("ray")
    write_recipe(work / "tiny.yaml", shapes, train__epochs=2, **QUICK)
    words = ("sweep", "tiny.yaml", "--over", "train.lr=0.05,0.001", "--json")
    here, there = (command(*words, "--runs", name, *more, cwd=work) for name, more in (("here", ()), ("there", RAY)))
    assert (here.code, there.code) == (0, 0), there.err
    ours, theirs = json.loads(here.out), json.loads(there.out)
    assert [(row["name"], row["values"]) for row in theirs["rows"]] == [(r["name"], r["values"]) for r in ours["rows"]]
    digests = [[summary(job(work / name, n))["state_digest"] for n in (1, 2)] for name in ("here", "there")]
    assert digests[0] == digests[1]

    write_recipe(work / "long.yaml", shapes, train__epochs=500, **QUICK)
    long = ("sweep", "long.yaml", "--over", "train.lr=0.05,0.01", "--rungs", "500", "--runs", "long", *RAY)
    running = start(*long, cwd=work)
    wait_until(lambda: any(row_count(each) >= 3 for each in (work / "long").glob("0*")) or not running.running, "steps")
    running.send(signal.SIGINT)
    stopped = running.wait()
    assert stopped.code == 130, stopped.err
    ended = [summary(each) for each in (work / "long").glob("0*") if (each / "summary.json").exists()]
    assert {each["status"] for each in ended} == {"stopped"}

    most = command(
        *words, "--runs", "most", *RAY, "--set", "parallel.mode=ddp", "--set", "parallel.devices=64", cwd=work
    )
    assert (most.code, "64 core(s)" in most.error_line) == (2, True)
    assert not (work / "most").exists()


WRONG = {
    ("--over", "train.lr=0.1"): "nothing to choose from",
    (): "nothing to try",
    ("--over", "train.speed=1,2"): "train.speed",
    ("--over", "train.lr=0.1,0.1"): "a value twice",
    ("--over", "train.epochs=1,2"): "a sweep is not over train.epochs",
    ("--over", "train.lr"): "has no values",
    ("--over", "train.lr=0.1,0.2", "--set", "train.lr=3"): "would make the configurations equal",
    ("--over", "train.lr=0.1,0.2", "--rungs", "4,2"): "give ascending epochs",
    ("--over", "train.lr=0.1,0.2", "--rungs", "1,99"): "ends at epoch 99 but train.epochs is 2",
    ("--over", "train.lr=0.1,0.2", "--budget", "lots"): "write a time or a sum",
    ("--over", "train.lr=0.1,0.2", "--budget", "5usd"): "has no price",
    ("--over", "train.lr=0.1,0.2", "--metric", "bleu"): "--metric is bleu",
    ("--over", "train.lr=0.1,-0.2"): "configuration 'lr=-0.2'",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_is_wrong_is_one_line_and_nothing_is_written(work: Path, shapes: Path, words: tuple[str, ...]) -> None:
    (work / "tiny.yaml").write_text(yaml.safe_dump(recipe(shapes)))
    done = command("sweep", "tiny.yaml", *words, cwd=work)
    assert done.code == 2
    assert WRONG[words] in done.error_line
    assert not (work / "runs").exists()
