"""What may change between two attempts at a run, and what may not."""

import json
import shutil
from pathlib import Path

import pytest

from flatout.runs.tables import effective_rows, read_table
from training import (
    STEPS,
    STEPS_PER_EPOCH,
    assert_same_training,
    checkpoints,
    command,
    expected_ledger,
    make_dataset,
    snapshot,
    summary,
    trained,
    write_recipe,
)


def add_an_image(data: Path) -> None:
    shutil.copy(data / "train" / "0-circle" / "00000.jpg", data / "train" / "0-circle" / "99999.jpg")


@pytest.fixture
def own_data(half: Path, work: Path, shapes: Path) -> Path:
    """The half-done run, with a dataset that a test may change."""
    shutil.copytree(shapes, work / "data")
    write_recipe(work / "tiny.yaml", work / "data")
    return half


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("train.seed=1", "train.seed changed from 0 to 1"),
        ("data.batch_size=4", "data.batch_size changed from 8 to 4 in the middle of epoch 2"),
        ("model.width=0.25", "do not fit the model"),
        ("train.optimizer=adamw", "optimizer state"),
    ],
)
def test_refused(half: Path, work: Path, assignment: str, said: str) -> None:
    before = snapshot(work)
    finished = command("train", "tiny.yaml", "--set", assignment, cwd=work)
    assert finished.code == 2
    assert said in finished.error_line
    assert snapshot(work) == before


def test_another_decoder_is_named(half: Path, work: Path) -> None:
    environment = json.loads((half / "env.json").read_text())
    (half / "env.json").write_text(json.dumps({**environment, "decoder": "a crystal ball"}))
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 0, finished.err
    assert "images were decoded by a crystal ball until now" in (half / "log.txt").read_text()


def test_a_changed_dataset_is_refused_with_counts(own_data: Path, work: Path) -> None:
    add_an_image(work / "data")
    before = snapshot(work)
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 2
    assert "156 training samples then, 157 now" in finished.error_line
    assert "--accept-changed-data" in finished.error_line
    assert snapshot(work) == before


def test_a_changed_dataset_can_be_accepted_and_that_is_recorded(own_data: Path, work: Path) -> None:
    add_an_image(work / "data")
    finished = command("train", "tiny.yaml", "--accept-changed-data", cwd=work)
    assert finished.code == 0, finished.err
    assert summary(own_data)["status"] == "completed"
    assert "156 training samples then, 157 now" in (own_data / "log.txt").read_text()
    assert command("train", "tiny.yaml", cwd=work).code == 0  # the new dataset is the run's dataset now


def test_other_class_names_are_refused_and_named(own_data: Path, work: Path) -> None:
    for split in ("train", "val"):
        (work / "data" / split / "1-square").rename(work / "data" / split / "1-box")
    before = snapshot(work)
    finished = command("train", "tiny.yaml", cwd=work)
    assert finished.code == 2
    assert "class 1 was '1-square' and is '1-box'" in finished.error_line
    assert snapshot(work) == before
    accepted = command("train", "tiny.yaml", "--accept-changed-data", cwd=work)
    assert accepted.code == 0, accepted.err
    assert "class 1 was '1-square' and is '1-box'; accepted" in (own_data / "log.txt").read_text()
    assert "1-box" in (own_data / "classes.json").read_text()


def test_a_moved_dataset_is_the_same_dataset(own_data: Path, work: Path, uninterrupted: Path) -> None:
    (work / "data").rename(work / "elsewhere")
    assert command("train", "tiny.yaml", "--set", f"data.path={work / 'elsewhere'}", cwd=work).code == 0
    assert_same_training(own_data, uninterrupted)


def test_a_changed_rate_is_used_and_said(half: Path, work: Path) -> None:
    before = trained(half)
    finished = command("train", "tiny.yaml", "--set", "train.lr=0.01", cwd=work)
    assert finished.code == 0
    said = "train.lr changed from 0.05 to 0.01 since the run began: the new value is used"
    assert said in finished.err
    assert said in (half / "log.txt").read_text()
    after = trained(half)
    assert after[: len(before)] == before
    assert all(float(row[-1]) <= 0.01 for row in after[len(before) :])
    assert "lr: 0.01" in (half / "config.yaml").read_text()


def test_another_batch_size_between_epochs_trains_every_epoch_whole(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, train__epochs=1), work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    finished = command("train", config, "--set", "train.epochs=3", "--set", "data.batch_size=52", cwd=work)
    assert finished.code == 0, finished.err
    first = expected_ledger(epochs=1)
    later = [row for row in expected_ledger(batch_size=52, epochs=3) if row[1] != "0"]
    assert [row[1:5] for row in trained(run)] == [row[1:] for row in [*first, *later]]
    assert summary(run)["samples_seen"] == 3 * 156


def test_more_epochs_go_on_with_a_completed_run(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, train__epochs=1), work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    assert command("train", config, "--set", "train.epochs=2", cwd=work).code == 0
    assert [row[:5] for row in trained(run)] == expected_ledger(epochs=2)
    assert [row["epoch"] for row in effective_rows(read_table(run / "epochs.csv"), "epoch")] == ["0", "1"]


def test_a_completed_run_says_so_and_changes_nothing(work: Path, shapes: Path) -> None:
    config, run = write_recipe(work / "tiny.yaml", shapes, train__max_steps=3), work / "runs" / "tiny"
    assert command("train", config, cwd=work).code == 0
    before = {name: digest for name, digest in snapshot(work).items() if not name.endswith("log.txt")}
    again = command("train", config, cwd=work)
    assert again.code == 0
    assert "is complete: 3 of 3 steps" in again.err
    assert {name: digest for name, digest in snapshot(work).items() if not name.endswith("log.txt")} == before
    as_json = command("train", config, "--json", cwd=work)
    assert json.loads(as_json.out) == summary(run)
    (run / "config.yaml").unlink()
    without = command("train", config, cwd=work)
    assert (without.code, "config.yaml was gone and is written anew" in without.err) == (0, True)
    assert {name: digest for name, digest in snapshot(work).items() if not name.endswith("log.txt")} == before


def test_fresh_moves_the_old_run_aside(half: Path, work: Path, uninterrupted: Path) -> None:
    before = {Path(name).relative_to(half): digest for name, digest in snapshot(half).items()}
    finished = command("train", "tiny.yaml", "--fresh", cwd=work)
    assert finished.code == 0
    assert "resuming" not in finished.err
    assert_same_training(half, uninterrupted)
    assert summary(half)["attempts"] == 1
    (aside,) = [path for path in (work / "runs").iterdir() if path != half]
    assert aside.name.startswith("tiny-before-")
    assert {Path(name).relative_to(aside): digest for name, digest in snapshot(aside).items()} == before
    assert command("runs", cwd=work).out.count("tiny") >= 2


def test_a_refused_fresh_leaves_the_old_run_where_it_is(half: Path, work: Path) -> None:
    before = snapshot(work)
    for wrong in (["--set", "model.name=resnet19"], ["--warm-start", "none.safetensors"]):
        assert command("train", "tiny.yaml", "--fresh", *wrong, cwd=work).code == 2
    assert snapshot(work) == before


def test_warm_start_takes_the_weights_and_nothing_else(half: Path, work: Path) -> None:
    weights = checkpoints(half)[-1]
    options = ("--run", "runs/warm", "--warm-start", weights, "--set", "train.lr=1e-9", "--set", "train.max_steps=1")
    finished = command("train", "tiny.yaml", *options, "--set", "train.ema=0.9", cwd=work)
    assert finished.code == 0, finished.err
    assert f"weights from {weights}" in finished.err
    cold = float(trained(half)[0][5])
    warm = float(trained(work / "runs" / "warm")[0][5])
    assert warm < cold
    assert summary(work / "runs" / "warm")["samples_seen"] == 8
    # validation uses the average, which must have begun at these weights and not at random ones
    assert summary(work / "runs" / "warm")["accuracy"]["val_loss"] < cold
    weights.unlink()
    again = command("train", "tiny.yaml", *options, "--set", "train.max_steps=2", cwd=work)
    assert again.code == 0, again.err  # the same command resumes; it needs the weights no more


def test_a_kill_between_the_last_checkpoint_and_the_summary_still_completes(
    work: Path, uninterrupted: Path, shapes: Path
) -> None:
    run = work / "runs" / "tiny"
    shutil.copytree(uninterrupted, run, symlinks=True)
    values = summary(run)
    (run / "summary.json").write_text(json.dumps({**values, "status": "running", "state_digest": None}))
    finished = command("train", write_recipe(work / "tiny.yaml", shapes), cwd=work)
    assert finished.code == 0
    assert_same_training(run, uninterrupted)
    assert "is complete" in command("train", "tiny.yaml", cwd=work).err


@pytest.mark.parametrize("max_steps", [None, STEPS_PER_EPOCH + 5])
def test_a_failure_in_the_last_validation_leaves_only_that_to_do(
    work: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch, max_steps: int | None
) -> None:
    """The last step is saved before the last validation: what is left on resume is the validation, not nothing."""
    import flatout
    from flatout.engine import loop
    from training import recipe

    steps = max_steps or STEPS
    values = recipe(shapes, train__max_steps=max_steps, checkpoint__every_steps=5)
    whole = flatout.train(values, run=work / "whole")
    evaluate, calls = loop.evaluate, []

    def fail_at_the_end(job: loop.Job) -> dict[str, float]:
        calls.append(job.progress.step)
        if job.progress.step == steps:
            raise RuntimeError("the machine went down")
        return evaluate(job)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "evaluate", fail_at_the_end)
        with pytest.raises(RuntimeError, match="went down"):
            flatout.train(values, run=work / "broken")
    assert summary(work / "broken")["status"] == "failed"
    flatout.train(values, run=work / "broken")
    assert_same_training(work / "broken", whole.directory)
    assert len(read_table(work / "broken" / "steps.csv")) == steps


def test_samples_that_cannot_be_decoded_end_no_epoch_later(work: Path) -> None:
    """A batch that is all quarantine has no step; training still ends after its epochs, not after its steps."""
    data = make_dataset(work / "data", 4, 2)
    broken = data / "train" / "1-square" / "bro\u2028ken\x0c.jpg"
    (data / "train" / "1-square" / "00001.jpg").rename(broken)
    broken.write_bytes(b"no image")
    config = write_recipe(
        work / "tiny.yaml", data, data__batch_size=1, data__max_quarantine_share=0.5, checkpoint__every_steps=4
    )
    run = work / "runs" / "tiny"
    assert command("train", config, "--run", "runs/whole", cwd=work).code == 0
    assert command("train", config, "--set", "train.max_steps=17", cwd=work).code == 0
    finished = command("train", config, cwd=work)
    assert finished.code == 0, finished.err
    order = [row[4] for row in expected_ledger(samples=16, batch_size=1)]
    (left_out,) = read_table(run / "quarantine.csv")
    assert left_out["name"].endswith("bro\u2028ken\x0c.jpg")
    rows = trained(run)
    assert len(rows) == 30
    assert {row[1] for row in rows} == {"0", "1"}
    assert [digest for digest in order if digest in {row[4] for row in rows}] == [row[4] for row in rows]
