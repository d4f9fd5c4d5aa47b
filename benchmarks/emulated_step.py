"""What a step on an emulated accelerator costs the CPU: a ResNet-50 of full width whose steps take 20 ms.

`flatout train` in a process of its own, on 16-pixel images out of the decoded cache, so that loading costs next to
nothing (one worker, 8 images a batch). CPU seconds are those of the whole process (loader, monitors and records too) between two steps, beside those
of the main thread after the data came (`cpu_seconds` of steps.csv).

    python benchmarks/emulated_step.py [--rounds 3] [--steps 400] [--optimizer sgd adamw] [--out FILE]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from dated_results import publish
from flatout.data.source.shapes import make_shapes
from flatout.runs.tables import read_table

BATCH, CLASSES, STEP_SECONDS = 8, 8, 0.020
WARM_UP_STEPS = 50


def write_recipe(folder, optimizer, steps):
    values = {
        "name": "emulated", "device": "emulated", "emulated": {"base_seconds": STEP_SECONDS, "seconds_per_sample": 0},
        "data": {"path": str(folder / "data"), "view": "v", "eval_view": "v", "batch_size": BATCH, "cache": "memory",
                 "workers": 1},
        "views": {"v": {"base": "train-64", "size": 16, "pad": 2}}, "model": {"name": "resnet50"},
        "train": {"epochs": 10**6, "max_steps": steps, "optimizer": optimizer, "ema": 0.999, "clip_norm": 1.0},
        "validate": {"every_epochs": 10**6}, "checkpoint": {"every_epochs": 10**6},
    }  # fmt: skip
    path = folder / f"{optimizer}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def rows_of(run):
    return read_table(run / "steps.csv") if (run / "steps.csv").exists() else []


def measure(recipe, run, steps):
    """CPU seconds per step of the process and of its main thread, and the seconds of a step."""
    command = [str(Path(sys.executable).with_name("flatout")), "train", str(recipe), "--run", str(run), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as training:
        process = psutil.Process(training.pid)
        seen = []  # steps so far, CPU seconds so far, time
        while training.poll() is None and (not seen or seen[-1][0] < steps - 10):
            time.sleep(0.25)
            if len(rows := rows_of(run)) >= WARM_UP_STEPS:
                used = process.cpu_times()
                seen.append((len(rows), used.user + used.system, time.perf_counter()))
        training.wait()
    (first, cpu_before, began), (last, cpu_after, ended) = seen[0], seen[-1]
    own = [float(row["cpu_seconds"]) for row in rows_of(run)[WARM_UP_STEPS:]]
    return {
        "process": (cpu_after - cpu_before) / (last - first),
        "main": statistics.fmean(own),
        "step": (ended - began) / (last - first),
    }


def percent(shares):
    return f"{100 * statistics.median(shares):.1f} % ({100 * min(shares):.1f} to {100 * max(shares):.1f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--optimizer", nargs="+", default=["sgd", "adamw"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {name: [] for name in options.optimizer}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in make_shapes(folder / "data", CLASSES, 100 * BATCH // CLASSES, 16, val_per_class=1):
            pass
        for number in range(options.rounds):
            for optimizer in options.optimizer:
                recipe = write_recipe(folder, optimizer, options.steps)
                found[optimizer].append(measure(recipe, folder / f"{optimizer}-{number}", options.steps))
    cores = os.cpu_count()
    lines = [
        f"| optimizer | CPU ms a step, process | main thread | step, ms | free of {cores} cores |",
        "|---|---|---|---|---|",
    ]
    for optimizer, rounds in found.items():
        free = [1 - each["process"] / each["step"] / cores for each in rounds]
        process, own, step = (
            f"{1e3 * statistics.median(values):.2f} ({1e3 * min(values):.2f} to {1e3 * max(values):.2f})"
            for values in ([each[key] for each in rounds] for key in ("process", "main", "step"))
        )
        lines.append(f"| {optimizer} | {process} | {own} | {step} | {percent(free)} |")
    lines += [
        "",
        f"{options.rounds} rounds in turn, median (least to most). Issue 17 asks for at least 97 % of the cores free.",
    ]
    text = "\n".join(lines) + "\n"
    publish("emulated-step", "CPU time of an emulated step of ResNet-50", text, options.out)


if __name__ == "__main__":
    main()
