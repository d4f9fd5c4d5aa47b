"""Logs of other programs become runs: columns by their many names, per cent as shares, damage survived."""

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flatout.cli import register
from flatout.cli.main import app
from flatout.commands.import_log import default_name, import_run
from flatout.commands.report import print_report
from flatout.errors import DataError, RunDirectoryError
from flatout.runs.events import read_scalars
from flatout.runs.foreign import match_columns, read_foreign

LIGHTNING = """epoch,lr-SGD,step,train_acc,train_loss_epoch,train_loss_step,val_acc,val_loss
,0.1,0,,,,,
0,,49,,,2.5,,
0,,99,,,2.0,,
0,,99,,,,0.25,1.9
0,,99,0.2,2.2,,,
1,0.05,149,,,nan,,
1,,199,,,,0.5,1.5
1,,199,0.4,1.8,,,
"""
TIMM = """epoch,train_loss,eval_loss,eval_top1,eval_top5,lr
0,6.9,6.8,0.25,0.75,0.1
1,5.0,4.5,12.5,30.0,0.2
epoch,train_loss,eval_loss,eval_top1,eval_top5,lr
1,4.9,4.4,13.5,31.0,0.2
"""
TORCHVISION = """epoch;lr;train loss;train acc@1;test loss;test acc@1;test acc@5;epoch_time
1;0.1;2.0;30;1.8;35.5;80;60
2;0.01;1.5;50;1.4;55.5;90;62.5
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_lightning(tmp_path: Path) -> None:
    run = import_run(write(tmp_path, "version_3/metrics.csv", LIGHTNING), tmp_path / "runs" / "before")
    assert (run.name, run.status) == ("before", "completed")
    assert [(row["epoch"], row["train_loss"], row["val_loss"], row["top1"]) for row in run.epochs] == [
        ("0", "2.2", "1.9", "0.25"), ("1", "1.8", "1.5", "0.5"),
    ]  # fmt: skip
    assert [(row.step, row.epoch, str(row.loss)) for row in run.steps] == [
        (49, 0, "2.5"),
        (99, 0, "2.0"),
        (149, 1, "nan"),
    ]
    assert run.epochs[1]["learning_rate"] == "0.05"
    figures = {"top1": 0.5, "top5": None, "bleu": None, "val_loss": 1.5, "train_loss": 1.8, "best_epoch": 1}
    assert run.summary["accuracy"] == figures
    assert run.summary["imported"]["columns_not_used"] == ["train_acc"]
    assert run.summary["time"]["wall_seconds"] is None
    print_report(run)


def test_hugging_face(tmp_path: Path) -> None:
    newest = tmp_path / "out/checkpoint-20"
    newest.mkdir(parents=True)
    history = [
        {"epoch": 0.5, "loss": 2.0, "learning_rate": 1e-3, "step": 5},
        {"epoch": 1.0, "loss": 1.0, "learning_rate": 5e-4, "step": 10},
        {"epoch": 1.0, "eval_loss": 1.5, "eval_accuracy": 0.5, "step": 10},
        {"epoch": 1.5, "loss": 0.75, "step": 15},
        {"epoch": 2.0, "loss": 0.5, "step": 20},
    ]
    (newest / "trainer_state.json").write_text(json.dumps({"global_step": 20, "log_history": history}))
    run = import_run(tmp_path / "out", tmp_path / "run")
    assert [(row["epoch"], row["val_loss"], row["top1"]) for row in run.epochs] == [("0", "1.5", "0.5"), ("1", "", "")]
    assert [(step.step, step.loss) for step in run.steps] == [(5, 2.0), (10, 1.0), (15, 0.75), (20, 0.5)]
    (newest / "trainer_state.json").write_text("{}")
    with pytest.raises(DataError, match="no log_history"):
        read_foreign(newest / "trainer_state.json")


def test_losses_of_steps_without_any_of_epochs_are_averaged(tmp_path: Path) -> None:
    log = read_foreign(write(tmp_path, "log.csv", "step,epoch,train_loss\n1,0,4\n2,0,2\n3,1,2\n4,1,1\n"))
    assert [row["train_loss"] for row in log.epochs] == [3.0, 1.5]
    assert [row["loss"] for row in log.steps] == [4, 2, 2, 1]


def test_timm_is_in_per_cent_even_where_the_model_is_bad(tmp_path: Path) -> None:
    bad = write(tmp_path, "bad/summary.csv", "".join(TIMM.splitlines(keepends=True)[:2]))
    assert read_foreign(bad).epochs[0]["top1"] == 0.0025
    log = read_foreign(write(tmp_path, "summary.csv", TIMM).parent)
    assert log.kind == "timm"
    assert [(row["epoch"], row["top1"], row["top5"]) for row in log.epochs] == [(0, 0.0025, 0.0075), (1, 0.135, 0.31)]
    assert log.steps == []


def test_torchvision_style_counted_from_one_with_times(tmp_path: Path) -> None:
    log = read_foreign(write(tmp_path, "resnet.csv", TORCHVISION))
    assert [(row["epoch"], row["top1"], row["val_loss"], row["train_loss"]) for row in log.epochs] == [
        (0, 0.355, 1.8, 2.0), (1, 0.555, 1.4, 1.5),
    ]  # fmt: skip
    assert log.wall_seconds == 122.5
    assert "epochs were counted from 1" in log.notes
    assert log.unused == ("train acc@1",)


@pytest.mark.parametrize(
    ("names", "ours", "theirs"),
    [
        (["Epoch", "Valid-Acc"], "top1", "Valid-Acc"),
        (["epoch", "acc1", "val_acc1"], "top1", "val_acc1"),
        (["epoch", "lr-AdamW/pg1"], "learning_rate", "lr-AdamW/pg1"),
        (["step", "train/loss", "train/epoch_loss"], "loss", "train/loss"),
        (["step", "train/loss", "train/epoch_loss"], "train_loss", "train/epoch_loss"),
        (["epoch", "loss", "val_loss"], "train_loss", "loss"),
    ],
)
def test_names_that_others_use(names: list[str], ours: str, theirs: str) -> None:
    assert match_columns(names)[ours] == theirs


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "has the columns a, b; an import needs epoch or step"),
        ("epoch,lr\n1,2\n", "and a loss or an accuracy"),
        ("", "has the columns none"),
        ("a" * 5000 + ",b\n1,2\n", "a; an import needs"),
        ("epoch,val_loss\n", "no rows"),
        ("epoch,val_loss\n1," + "9" * 200_000 + "\n", "is no CSV table"),
    ],
)
def test_a_log_that_tells_nothing_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=r"^[^\n]*$") as caught:
        import_run(write(tmp_path, "log.csv", text), tmp_path / "runs" / "x")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("rows", "train_loss"),
    [
        ("0,inf,1,0.5\n0,-inf,2,0.5\n", "nan"),
        ("0,1e308,1,0.5\n0,1e308,2,0.5\n", ""),
        ("0,1,-5,-0.5\n0,2,1e308,1e308\n", "1.5"),
    ],
)
def test_figures_beyond_all_measure_are_left_out(tmp_path: Path, rows: str, train_loss: str) -> None:
    log = write(tmp_path, "odd.csv", "epoch,batch_loss,epoch_time,top1\n" + rows)
    run = import_run(log, tmp_path / "run")
    assert [row.get("train_loss", "") for row in run.epochs] == [train_loss]
    assert run.summary["time"]["wall_seconds"] == (3.0 if "inf" in rows or "1e308,1," in rows else None)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    log = write(tmp_path, "summary.csv", TIMM)
    import_run(log, tmp_path / "runs" / "x")
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        import_run(log, tmp_path / "runs" / "x")


def test_default_names(tmp_path: Path) -> None:
    assert default_name(write(tmp_path, "version_0/metrics.csv", "")) == "version_0"
    assert default_name(write(tmp_path, "my run.csv", "")) == "my-run"
    assert default_name(tmp_path / "version_0") == "version_0"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    register()
    done = CliRunner().invoke(app, ["import", str(write(tmp_path, "old/summary.csv", TIMM))])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("runs/old: 2 epochs, 0 steps\n")
    assert "eval_top1 as top1" in done.output
    assert "note: top1 was in per cent" in done.output
    assert CliRunner().invoke(app, ["report", "runs/old"]).exit_code == 0
    assert CliRunner().invoke(app, ["runs"]).exit_code == 0


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder: Path) -> Path:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(1, 7):
        values = [Summary.Value(tag="train/loss", simple_value=1 / step)]
        if step % 3 == 0:
            values += [
                Summary.Value(tag="val/loss", simple_value=2 / step),
                Summary.Value(tag="val/acc1", tensor=TensorProto(dtype=1, float_val=[10.0 * step])),
                Summary.Value(tag="val/acc5", tensor=TensorProto(dtype=2, tensor_content=struct.pack("<d", 95.0))),
                Summary.Value(tag="image", image=Summary.Image(height=1, width=1, encoded_image_string=b"x" * 100)),
            ]
        writer.add_event(Event(wall_time=100.0 + step, step=step, summary=Summary(value=values)))
    writer.close()
    return next(folder.iterdir())


def test_events_become_steps_and_epochs(tmp_path: Path) -> None:
    events(tmp_path / "tb")
    run = import_run(tmp_path / "tb", tmp_path / "runs" / "tb")
    assert [(row["epoch"], row["step"], float(row["top1"]), float(row["top5"])) for row in run.epochs] == [
        ("0", "3", 0.3, 0.95), ("1", "6", 0.6, 0.95),
    ]  # fmt: skip
    assert [(row.step, row.epoch) for row in run.steps] == [(step, (step - 1) // 3) for step in range(1, 7)]
    assert run.steps[1].loss == 0.5
    assert run.summary["time"]["wall_seconds"] == 5.0
    assert "no epoch in the log: each validation ends one" in run.summary["imported"]["notes"]


def test_our_own_events_come_back(tmp_path: Path) -> None:
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "tb"))
    for step in range(4):
        writer.add_scalar("train/loss", 4.0 - step, step)
        if step % 2:
            for tag, value in (
                ("train/epoch", step // 2),
                ("train/epoch_loss", 3.0),
                ("val/top1", 0.5),
                ("val/loss", 1.0),
            ):
                writer.add_scalar(tag, value, step)
    writer.close()
    log = read_foreign(tmp_path / "tb")
    assert [(row["epoch"], row["train_loss"], row["top1"], row["val_loss"]) for row in log.epochs] == [
        (0, 3.0, 0.5, 1.0), (1, 3.0, 0.5, 1.0),
    ]  # fmt: skip
    assert [(row["epoch"], row["loss"]) for row in log.steps] == [(0, 4.0), (0, 3.0), (1, 2.0), (1, 1.0)]


def test_an_event_file_cut_anywhere_gives_what_comes_before(tmp_path: Path) -> None:
    path = events(tmp_path / "tb")
    whole, data = read_scalars(path), path.read_bytes()
    counts = []
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        found = read_scalars(path)
        assert found == whole[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == len(whole) == 12


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_events_never_do_more_than_end_early(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    body = data.draw(st.binary(max_size=60))
    length = data.draw(st.sampled_from([len(body), 0, 2**63, len(body) + 5]))
    path = tmp_path_factory.mktemp("events") / "events.out.tfevents.1"
    path.write_bytes(struct.pack("<QI", length, 0) + body + bytes(4))
    assert all(isinstance(scalar.value, float) and not math.isnan(scalar.step) for scalar in read_scalars(path))
