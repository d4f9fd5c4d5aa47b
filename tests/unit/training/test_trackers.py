"""Trackers get a run's records, and trouble with one of them stays with it. The real libraries, where installed."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.config.loading import load_config
from flatout.engine.loop import EpochRecord, StepRecord
from flatout.training import trackers
from flatout.training.trackers import TrackedAttempt, Trackers, numbers

SUMMARY = {"status": "completed", "cause": None, "accuracy": {"top1": 0.5, "top5": None}, "attempts": 1}
STEP = StepRecord(7, 0, 6, 32, "digest", 1.25, 0.1, 0.5, 0.05, 1.0, 0.2)
EPOCH = EpochRecord(0, 7, 224, 1.5, {"val_loss": 2.0, "top1": 0.5}, 0.1, 1.0)


def attempt(folder: Path, number: int = 1) -> TrackedAttempt:
    directory = folder / "runs" / "tiny"
    directory.mkdir(parents=True, exist_ok=True)
    return TrackedAttempt(directory, load_config({"name": "tiny"}).config, number, 5)


def send(names: list[str], told: TrackedAttempt, notes: list[str]) -> None:
    sending = Trackers(names, notes.append)
    sending.start(told)
    sending.step(STEP)
    sending.epoch(EPOCH)
    sending.finish(SUMMARY)


def test_tensorboard_has_steps_epochs_and_the_summary(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    notes: list[str] = []
    send(["tensorboard", "tensorboard"], attempt(tmp_path), notes)
    assert notes == []
    events = EventAccumulator(str(tmp_path / "runs" / "tiny" / "tensorboard")).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found["train/loss"] == [(7, 1.25)]
    assert found["speed/samples_per_second"] == [(7, 64.0)]
    assert found["val/top1"] == [(7, 0.5)]
    assert found["val/loss"] == [(7, 2.0)]
    assert found["train/epoch_loss"] == [(7, 1.5)]
    assert "summary/text_summary" in events.Tags()["tensors"]


def test_wandb_works_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    notes: list[str] = []
    send(["wandb"], attempt(tmp_path), notes)
    assert notes == []
    (written,) = (tmp_path / "runs" / "tiny" / "wandb").glob("offline-run-*/*.wandb")
    assert b"train/epoch_loss" in written.read_bytes()


def test_mlflow_writes_a_file_store_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    notes: list[str] = []
    send(["mlflow"], attempt(tmp_path), notes)
    send(["mlflow"], attempt(tmp_path, 2), notes)
    assert notes == []
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "runs" / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("flatout").experiment_id])
    assert sorted(run.info.run_name for run in runs) == ["tiny", "tiny-attempt2"]
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert runs[0].data.metrics["val/top1"] == 0.5
    assert runs[0].data.metrics["summary/accuracy.top1"] == 0.5
    assert runs[0].data.params["train.optimizer"] == "sgd"


class Recording:
    def __init__(self, _: TrackedAttempt) -> None:
        self.seen: list[Any] = []
        KEPT.append(self)

    def log(self, step: int, scalars: Any) -> None:
        self.seen.append((step, dict(scalars)))

    def finish(self, summary: Any) -> None:
        self.seen.append(summary["status"])


KEPT: list[Recording] = []


class Failing(Recording):
    def log(self, step: int, scalars: Any) -> None:
        raise OSError(28, "No space left on device")


def not_installed(_: TrackedAttempt) -> Any:
    raise ModuleNotFoundError("No module named 'wandb'")


def kinds(monkeypatch: pytest.MonkeyPatch, **made: Callable[[TrackedAttempt], Any]) -> None:
    KEPT.clear()
    monkeypatch.setattr(trackers, "_KINDS", made)


def test_a_tracker_that_fails_is_said_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds(monkeypatch, wandb=not_installed, mlflow=Failing, tensorboard=Recording)
    notes: list[str] = []
    send(["wandb", "mlflow", "tensorboard"], attempt(tmp_path), notes)
    assert len(notes) == 2
    assert notes[0] == (
        "tracker wandb: No module named 'wandb'; pip install 'flatout[trackers]'. Training goes on without it"
    )
    assert notes[1].startswith("tracker mlflow: OSError: [Errno 28] No space left on device")
    assert [entry if isinstance(entry, str) else entry[0] for entry in KEPT[1].seen] == [7, 7, "completed"]
    assert KEPT[0].seen == [], "a tracker that failed is asked nothing more"


def test_many_steps_a_second_are_thinned_and_epochs_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds(monkeypatch, tensorboard=Recording)
    monkeypatch.setattr(trackers, "_STEP_SECONDS", 3600.0)
    sending = Trackers(["tensorboard"], lambda text: None)
    sending.start(attempt(tmp_path))
    for _ in range(50):
        sending.step(STEP)
        sending.epoch(EPOCH)
    sending.finish(SUMMARY)
    assert sum("train/loss" in entry[1] for entry in KEPT[0].seen[:-1]) == 1
    assert sum("val/top1" in entry[1] for entry in KEPT[0].seen[:-1]) == 50


def test_training_does_not_wait_for_a_tracker_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(told: TrackedAttempt) -> Any:
        release.wait()
        return Recording(told)

    kinds(monkeypatch, tensorboard=hang)
    monkeypatch.setattr(trackers, "_WAITING_RECORDS", 10)
    monkeypatch.setattr(trackers, "_FINISH_SECONDS", 0.1)
    notes: list[str] = []
    sending = Trackers(["tensorboard"], notes.append)
    sending.start(attempt(tmp_path))
    for _ in range(100):
        sending.epoch(EPOCH)
    sending.finish(SUMMARY)
    assert len(notes) == 2
    assert "10 records wait already" in notes[0]
    assert "not done after" in notes[1]
    release.set()


def test_figures_by_dotted_name() -> None:
    assert numbers({"a": {"b": 1, "c": None, "d": {"e": 0.5}}, "f": "text", "g": True, "h": [1]}) == {
        "a.b": 1,
        "a.d.e": 0.5,
    }
