"""What all of flatout's measuring costs: the same loop with spans, lanes and monitors, and with none of them.

One model, one loader for each side, in one process, in blocks by turns: a block with everything recorded to files and the
monitors sampling, then one in silence. The figure is the ratio of the two medians of all steps.

    python benchmarks/measure_overhead.py [--blocks 10] [--steps 20]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from flatout.config.loading import load_config
from flatout.data.loading.loader import open_loader
from flatout.data.source.shapes import make_shapes
from flatout.engine.devices import keep_freed_memory
from flatout.engine.learner import build_learner
from flatout.engine.loop import Job, Progress, train
from flatout.runs.directory import RunDirectory
from flatout.timeline import Recorder
from flatout.training.monitoring import SystemRecords
from flatout.training.setup import prepare_setup
from loop_overhead import BATCH, CLASSES, SIZE


class Silent(Recorder):
    """Writes nothing and reads no clock."""

    def span(self, name):
        return nullcontext()

    def device_wait(self):
        return nullcontext()

    def lane(self, lane, name, start, seconds):
        pass

    def value(self, lane, name, value):
        pass


def steps_of(setup, learner, loader, recorder):
    job = Job(
        setup.config, setup.task, learner, loader, None, recorder, Progress(),
        save=lambda _: None, stop_reason=lambda: None, total_steps=setup.total_steps,
    )  # fmt: skip
    return train(job)


def block(loop, steps):
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        next(loop)
        seconds.append(time.perf_counter() - started)
    return seconds


def measure(folder, blocks, steps):
    data = folder / "data"
    for _ in make_shapes(data, CLASSES, BATCH * (blocks * steps + 4) // CLASSES, SIZE, val_per_class=1):
        pass
    setup = prepare_setup(load_config({
        "device": "cpu", "data": {"path": str(data), "view": "v", "eval_view": "v", "batch_size": BATCH, "workers": 1},
        "views": {"v": {"base": "train-64", "size": SIZE}}, "model": {"name": "resnet18", "width": 0.25},
        "train": {"epochs": 1, "lr": 0.01, "warmup_epochs": 0},
    }).config)  # fmt: skip
    learner = build_learner(setup.task, setup.config, setup.device)
    recorder, silent = Recorder(folder / "spans.jsonl").open(), Silent(None)
    recorder.end_startup()
    seconds = {"measured": [], "silent": []}
    with (
        open_loader(setup.plan, setup.config.data, 1, recorder=recorder) as one,
        open_loader(setup.plan, setup.config.data, 1) as two,
    ):
        measured, quiet = steps_of(setup, learner, one, recorder), steps_of(setup, learner, two, silent)
        for loop in (measured, quiet):
            block(loop, 2)
        for number in range(blocks):
            for name in ("measured", "silent")[:: 1 if number % 2 else -1]:
                system = SystemRecords(RunDirectory(folder), setup.config, setup.device, 1)
                if name == "measured":
                    system.start(recorder.wall_seconds, print)
                seconds[name] += block(measured if name == "measured" else quiet, steps)
                system.close()
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / f"results/{time.strftime('%Y-%m-%d')}-measure-overhead.md"
    )
    options = parser.parse_args()
    torch.set_num_threads(2)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        seconds = measure(Path(name), options.blocks, options.steps)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    blocks = [
        statistics.median(seconds["measured"][at : at + options.steps])
        / statistics.median(seconds["silent"][at : at + options.steps])
        for at in range(0, options.blocks * options.steps, options.steps)
    ]
    low, middle, high = statistics.quantiles(blocks, n=4)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = "\n".join(
        f"| {name} | {1e3 * medians[name]:.2f} | {1e3 * min(values):.2f} |" for name, values in seconds.items()
    )
    text = f"""# What measuring costs

{time.strftime("%Y-%m-%d")}, commit {commit}, torch {torch.__version__}, 2 threads, {options.blocks} blocks of {options.steps} steps each in turns
(ResNet-18 width 0.25, batch {BATCH}, {SIZE} pixels, CPU, monitors at 1 Hz, shared noisy machine).

    {" ".join(["python", *sys.argv])}

| loop | ms per step, median | best |
|---|---|---|
{rows}

Ratio of the medians: **{medians["measured"] / medians["silent"]:.4f}**; of neighbouring blocks: median {middle:.4f}, quartiles {low:.4f} to {high:.4f};
of the best steps {min(seconds["measured"]) / min(seconds["silent"]):.4f}.
"""
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
