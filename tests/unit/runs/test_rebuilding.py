"""A run that was killed is summed up from the files it left, not from what it last wrote about itself."""

import json
from pathlib import Path

import pytest
import yaml

from flatout.config.tasks import metric_named
from flatout.errors import RunDirectoryError
from flatout.runs import RunDirectory, read_run
from flatout.runs.directory import write_json, write_text

STEP_HEADER = (
    "attempt,step,epoch,batch_index,samples,samples_digest,loss,learning_rate,step_seconds,data_wait_seconds,time_unix"
)


def span(name: str, step: int, start: float, seconds: float) -> str:
    return json.dumps({"name": name, "step": step, "start": start, "seconds": seconds, "own": seconds})


def killed_run(root: Path, **summary: object) -> RunDirectory:
    """Two attempts: 10 s with steps 1 and 2, and 6 s with step 2 again and 3; killed inside the fourth."""
    root.mkdir(parents=True)
    directory = RunDirectory(root)
    write_text(directory.config, yaml.safe_dump({"name": "mine", "checkpoint": {"metric": "val_loss"}}))
    if summary:
        write_json(directory.summary, summary)
    directory.spans.mkdir()
    lines = [
        '{"attempt": 1, "started_unix": 1000.0}', span("startup", 0, 0.0, 4.0), span("forward", 1, 4.0, 3.0),
        span("checkpoint", 1, 7.5, 2.5), '{"attempt": 2, "started_unix": 2000.0}', span("startup", 0, 0.0, 2.0),
        span("forward", 2, 2.0, 4.0), '{"name":"forward","step":3,"sta',
    ]  # fmt: skip
    (directory.spans / "rank0.jsonl").write_text("\n".join(lines))
    rows = ["1,1,0,0,8,a,0.5,0.1,1.0,0.1,1", "1,2,0,1,8,b,0.5,0.1,9.0,0.1,2", "2,2,0,1,8,b,0.5,0.1,2.0,0.1,3",
            "2,3,1,0,4,c,0.5,0.1,3.0,0.1,4", "2,4,1,1,8,d,0."]  # fmt: skip
    directory.steps.write_text("\r\n".join([STEP_HEADER, *rows]))
    directory.epochs.write_text("attempt,epoch,step,val_loss,top1\r\n1,0,2,2.5,0.4\r\n2,0,2,2.0,0.5\r\n")
    directory.quarantine.write_text("split,sample_id,name,reason\r\ntrain,7,x.jpg,cut off\r\n")
    directory.checkpoints.mkdir()
    (directory.checkpoints / "step-00000002.safetensors").write_bytes(b"x" * 100)
    return directory


def test_everything_up_to_the_kill_is_in_the_summary(tmp_path: Path) -> None:
    before = {"run": "mine", "status": "running", "attempts": 2, "time": {"wall_seconds": 1.0, "parts": {}},
              "data": {"samples_total": 12, "quarantined": 0}, "cost": {"total_usd": 1.0}}  # fmt: skip
    killed_run(tmp_path / "run", **before)
    found = read_run(tmp_path / "run").summary
    assert (found["status"], found["attempts"], found["samples_seen"]) == ("failed", 2, 20)
    assert "killed" in found["cause"]
    assert found["time"]["wall_seconds"] == pytest.approx(16.0)
    assert sum(found["time"]["parts"].values()) == pytest.approx(16.0)
    assert found["time"]["parts"]["startup"] == 6.0
    assert found["time"]["parts"]["unattributed"] == pytest.approx(0.5)
    assert found["throughput"]["samples_per_second"] == pytest.approx(20 / 6)
    assert found["accuracy"]["val_loss"] == 2.0
    assert found["accuracy"]["best_epoch"] == 0
    assert found["data"] == {"samples_total": 12, "quarantined": 1}
    assert found["checkpoint"] == {"files": 1, "bytes": 100, "seconds": 2.5}
    assert found["cost"] is None  # what it had cost by then is not what it cost
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == before  # who reads does not write


def test_a_run_killed_before_its_first_summary_has_one_all_the_same(tmp_path: Path) -> None:
    killed_run(tmp_path / "run")
    found = read_run(tmp_path / "run").summary
    assert (found["run"], found["status"], found["attempts"]) == ("mine", "failed", 2)
    assert found["time"]["wall_seconds"] == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", ""), ("config.yaml", "- 1\n"), ("summary.json", "{"), ("env.json", "[1"),
        ("steps.csv", "attempt,step\r\n1,one\r\n"), ("steps.csv", "step\r\n1\r\n"), ("epochs.csv", "epoch\r\n1\r\n"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    killed_run(tmp_path / "run", status="completed")
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises(RunDirectoryError) as caught:
        read_run(tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_falls_and_what_rises_as_a_model_learns() -> None:
    assert [metric_named(name).higher_is_better for name in ("top1", "top5", "bleu", "val_loss", "train_loss", "perplexity")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
