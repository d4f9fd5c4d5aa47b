"""What flatout's loop costs over a bare PyTorch loop that does the same steps on the same batches.

Both train the same small ResNet on the same shapes dataset with the same loader. Rounds alternate between the two
in one process, so that noise hits both; the figure is the median of per-round ratios.

    python benchmarks/loop_overhead.py [--rounds 15] [--steps 30]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional as F

from flatout.app.train_run import prepare_setup
from flatout.config.loading import load_config
from flatout.data.loader import open_loader
from flatout.data.normalize import normalize
from flatout.data.shapes import make_shapes
from flatout.engine.learner import build_learner
from flatout.engine.loop import Job, Progress, train
from flatout.runs.directory import STEP_COLUMNS, Table
from flatout.timeline import Recorder

RESULTS = Path(__file__).parent / "results"


def bare_seconds(setup, steps):
    """A loop as one would write it by hand: same model, optimizer, schedule-free, same batches, loss read each step."""
    learner = build_learner(setup.task, setup.config, setup.device)
    model, optimizer = learner.model, learner.optimizer
    model.train()
    with open_loader(setup.recipe, setup.config.data, 1) as loader:
        batches = loader.epoch(0)
        next(batches)
        started = time.perf_counter()
        for _ in range(steps):
            batch = next(batches)
            images = normalize(batch.images, setup.recipe.view, channels_last=True)
            loss = F.cross_entropy(model(images), batch.labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss.item()
        return time.perf_counter() - started


def flatout_seconds(setup, steps, folder):
    """The real loop with spans and step records written to disk."""
    learner = build_learner(setup.task, setup.config, setup.device)
    recorder = Recorder(folder / "spans.jsonl").open()
    table = Table(folder / "steps.csv", STEP_COLUMNS)
    with open_loader(setup.recipe, setup.config.data, 1) as loader:
        job = Job(
            setup.config, setup.task, learner, loader, None, recorder, Progress(),
            save=lambda _: None, stop_reason=lambda: None, total_steps=steps + 1,
        )  # fmt: skip
        recorder.end_startup()
        started = 0.0
        for record in train(job):
            if hasattr(record, "batch_index"):
                table.append({"attempt": 1, **vars(record)})
                if record.step == 1:
                    started = time.perf_counter()
                last = time.perf_counter()
    recorder.close()
    table.close()
    return last - started


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{time.strftime('%Y-%m-%d')}-loop-overhead.md")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        data, size, batch = Path(folder) / "data", 32, 64
        for _ in make_shapes(data, 8, 64 * (options.steps + 8) // 8, size):
            pass
        config = load_config({
            "device": "cpu", "data": {"path": str(data), "view": "v", "eval_view": "v", "batch_size": batch, "workers": 1},
            "views": {"v": {"base": "train-64", "size": size}}, "model": {"name": "resnet18", "width": 0.25},
            "train": {"epochs": 1, "lr": 0.01, "warmup_epochs": 0},
        }).config  # fmt: skip
        setup = prepare_setup(config)
        ratios, bare, ours = [], [], []
        for number in range(options.rounds):
            pair = [("bare", lambda: bare_seconds(setup, options.steps)),
                    ("ours", lambda: flatout_seconds(setup, options.steps, Path(folder)))]  # fmt: skip
            figures = {name: run() for name, run in (pair if number % 2 == 0 else reversed(pair))}
            bare.append(figures["bare"] / options.steps)
            ours.append(figures["ours"] / options.steps)
            ratios.append(figures["ours"] / figures["bare"])
            print(
                f"round {number + 1}: bare {1e3 * bare[-1]:.1f} ms, flatout {1e3 * ours[-1]:.1f} ms, ratio {ratios[-1]:.3f}"
            )
    write(options.out, ratios, bare, ours, options, batch)


def write(path, ratios, bare, ours, options, batch):
    quartiles = statistics.quantiles(ratios, n=4)
    best = min(ours) / min(bare)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    text = f"""# Overhead of the training loop over a bare PyTorch loop

{time.strftime("%Y-%m-%d")}, commit {commit}, torch {torch.__version__}, 2 threads, {options.rounds} interleaved rounds of {options.steps} steps
(ResNet-18 width 0.25, batch {batch}, 32 pixels, CPU, shared noisy machine).

    {" ".join(["python", *sys.argv])}

| | ms per step, median | ms per step, best round |
|---|---|---|
| bare loop | {1e3 * statistics.median(bare):.2f} | {1e3 * min(bare):.2f} |
| flatout (spans, step records, finite checks, schedule) | {1e3 * statistics.median(ours):.2f} | {1e3 * min(ours):.2f} |

Ratio flatout / bare: median **{statistics.median(ratios):.3f}** (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}),
best against best {best:.3f}.
"""
    path.write_text(text)
    path.with_suffix(".json").write_text(json.dumps({"ratios": ratios, "bare_seconds": bare, "flatout_seconds": ours}))
    print(text)


if __name__ == "__main__":
    main()
