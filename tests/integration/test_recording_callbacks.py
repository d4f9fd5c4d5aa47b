"""Callbacks with the real libraries on tiny models: each leaves a run whose steps, samples and figures are the loop's."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from flatout.commands.explain import explain
from flatout.runs import Run, read_run
from flatout.runs.tables import read_table

SAMPLES = 32


def data(batch: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(SAMPLES, 4), torch.zeros(SAMPLES, dtype=torch.long)), batch)


def checked(folder: Path, steps: int, samples: int, batch: int) -> Run:
    run = read_run(folder)
    assert (run.status, run.summary["recorded"]["missing"]) == ("completed", [])
    assert [step.samples for step in run.steps] == [samples] * steps
    assert run.summary["recorded"]["loader"]["batch_size"] == batch  # of training, not of validation
    parts = run.summary["time"]["parts"]
    assert all(parts[name] > 0 for name in ("data_wait", "forward", "backward", "optimizer", "validation", "other"))
    assert sum(parts.values()) == pytest.approx(run.summary["time"]["wall_seconds"], rel=1e-2)
    assert all(step.step_seconds > 0 for step in run.steps)
    assert explain(run).cause
    return run


def lightning_fit(package: str, callback: Any, folder: Path, fail: Callable[[int], None]) -> None:
    lightning = pytest.importorskip(package)

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch: Any, index: int) -> Tensor:
            fail(self.global_step)
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            self.log("val_acc", 0.5)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), data(8), data(16))


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    from flatout.recording.callbacks.lightning import FlatoutRecording

    callback = FlatoutRecording(str(tmp_path / "run"))
    lightning_fit("pytorch_lightning", callback, tmp_path, lambda step: None)
    run = checked(tmp_path / "run", steps=8, samples=8, batch=8)
    assert [float(row["top1"]) for row in read_table(run.directory / "epochs.csv")] == [0.5, 0.5]

    def fail(step: int) -> None:
        if step == 3:
            raise ValueError("a bad label")

    with pytest.raises(ValueError, match="a bad label"):
        lightning_fit("pytorch_lightning", callback, tmp_path, fail)
    failed = read_run(tmp_path / "run-2")  # the same callback again: the next free name
    assert (failed.status, failed.summary["cause"], len(failed.steps)) == ("failed", "ValueError: a bad label", 3)


def test_the_script_s_part_of_a_closure_is_not_the_optimizer_s(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    from flatout.recording.callbacks.lightning import FlatoutRecording

    doing: list[str] = []
    callback = FlatoutRecording(str(tmp_path / "run"))

    def look(step: int) -> None:
        assert callback._run.ledger is not None
        doing.append(callback._run.ledger._ledger.recorder.current)

    lightning_fit("pytorch_lightning", callback, tmp_path, look)
    assert set(doing) == {"other"}


def test_huggingface_with_accumulation(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from flatout.recording.callbacks.huggingface import FlatoutRecording

    config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    words = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(SAMPLES)]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=words,
        eval_dataset=words[:16],
        callbacks=[FlatoutRecording(str(tmp_path / "run"))],
    )
    trainer.train()
    run = checked(tmp_path / "run", steps=8, samples=8, batch=4)
    logged = [told["loss"] for told in trainer.state.log_history if "loss" in told]
    assert [step.loss for step in run.steps] == pytest.approx(logged, rel=1e-3)
    last = [told["eval_loss"] for told in trainer.state.log_history if "eval_loss" in told]
    assert [float(row["val_loss"]) for row in read_table(run.directory / "epochs.csv")] == pytest.approx(last)


def test_accelerate(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from flatout.recording.callbacks.accelerate import FlatoutTracker

    accelerator = accelerate.Accelerator(
        cpu=True, log_with=FlatoutTracker(str(tmp_path / "run")), gradient_accumulation_steps=2
    )
    accelerator.init_trackers("mine", config={"lr": 0.1})
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net, optimizer, train, held_out = accelerator.prepare(net, optimizer, data(4), data(16))
    for _ in range(2):
        for x, y in train:
            with accelerator.accumulate(net):
                accelerator.backward(nn.functional.cross_entropy(net(x), y))
                optimizer.step()
                optimizer.zero_grad()
        for x, _ in held_out:
            with torch.no_grad():
                net(x)
        accelerator.log({"eval/accuracy": torch.tensor(0.25)})
    accelerator.end_training()
    run = checked(tmp_path / "run", steps=8, samples=8, batch=4)
    assert [float(row["top1"]) for row in read_table(run.directory / "epochs.csv")] == [0.25, 0.25]


def test_a_run_that_nobody_closed_is_closed_when_the_process_ends(tmp_path: Path) -> None:
    import subprocess

    script = (
        "import flatout.recording.opening as o, torch\n"
        "o.open_recording('run').__enter__()\n"
        "net = torch.nn.Linear(2, 2); s = torch.optim.SGD(net.parameters(), 0.1)\n"
        "net(torch.ones(3, 2)).sum().backward(); s.step()\n"
        "raise ValueError('a bad label')\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True)
    run = read_run(tmp_path / "run")
    assert (run.status, run.summary["cause"], len(run.steps)) == ("failed", "ValueError: a bad label", 1)
