"""What a run's records cost beside its steps: steps.csv, epochs.csv and the summary of every epoch, without training.

    python benchmarks/records_overhead.py [--steps 450000] [--epochs 90] [--step-seconds 0.05]

The share is of the wall clock that so many steps of `--step-seconds` would take.
"""

import argparse
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from flatout.config.loading import load_config
from flatout.data.batch import LoadStats
from flatout.data.source.shapes import make_shapes
from flatout.engine.loop import EpochRecord, StepRecord
from flatout.runs import RunDirectory
from flatout.timeline import Recorder
from flatout.training.recording import RunRecords
from flatout.training.setup import prepare_setup

SAMPLES = 256


def new_records(folder):
    for _ in make_shapes(folder / "data", 2, 4, 16, val_per_class=1):
        pass
    setup = prepare_setup(
        load_config({"data": {"path": str(folder / "data"), "batch_size": 8}, "device": "cpu"}).config
    )
    directory = RunDirectory(folder / "run")
    directory.lock()
    return RunRecords(directory, setup.config, setup.dataset, setup.device, "synthetic")


def feed(records, recorder, steps, epochs, step_seconds):
    """Seconds that each epoch's records took."""
    chance, taken = random.Random(0), []
    each = steps // epochs
    for epoch in range(epochs):
        started = time.perf_counter()
        for index in range(each):
            step = epoch * each + index + 1
            records.quarantine("train", {})
            records.step(StepRecord(
                step, epoch, index, SAMPLES, "0123456789abcdef", 1.234567890123, 0.1, chance.lognormvariate(0, 0.2) * step_seconds,
                0.001, time.time(), 0.02,
            ))  # fmt: skip
        records.epoch(
            EpochRecord(
                epoch, (epoch + 1) * each, each * SAMPLES, 1.2, {"top1": 0.5, "val_loss": 1.1}, 0.1, time.time()
            )
        )
        records.summarise("running", None, recorder, LoadStats(), (epoch + 1) * each * SAMPLES)
        taken.append(time.perf_counter() - started)
    return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=450_000)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        records = new_records(Path(name))
        recorder = Recorder(Path(name) / "spans.jsonl").open()
        process = psutil.Process()
        before = process.memory_info().rss
        cpu_before = time.process_time()
        taken = feed(records, recorder, options.steps, options.epochs, options.step_seconds)
        grown = process.memory_info().rss - before
        cpu_seconds = time.process_time() - cpu_before
        started = time.perf_counter()
        records.summarise("completed", None, recorder, LoadStats(), options.steps * SAMPLES)
        ending = time.perf_counter() - started
        recorder.close()
        records.close()
    wall = options.steps * options.step_seconds
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(
        f"{time.strftime('%Y-%m-%d')}, commit {commit}, {platform.python_version()}, {os.cpu_count()} cores (shared, noisy)\n"
    )
    print(f"    {' '.join(['python', *sys.argv])}\n")
    print(
        "| epoch 1, s | last epoch, s | all epochs, s | of it CPU, s | the end, s | share of the wall clock | RSS grew by, MB |"
    )
    print("|---|---|---|---|---|---|---|")
    share = (sum(taken) + ending) / wall
    print(
        f"| {taken[0]:.3f} | {taken[-1]:.3f} | {sum(taken):.1f} | {cpu_seconds:.1f} | {ending:.2f} | {100 * share:.3f} % | {grown / 1e6:.1f} |"
    )


if __name__ == "__main__":
    main()
