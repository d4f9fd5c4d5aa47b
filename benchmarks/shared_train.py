"""Four `flatout train` processes on one machine, with shared batches or each with a loader of its own.

The whole command as users run it: an emulated accelerator of 1 ms steps, a ResNet-18 of full width, every key but those
below at its default. Modes take turns, round after round. The figure is samples per second in all, from the jobs'
steps.csv, over the time in which all of them were training: from the moment the last one had its tenth step until the
first one had its last. Validation and checkpoints are left out: both modes do them alike, and they are not loading.

    python benchmarks/shared_train.py --data DIR/tiny-imagenet-40 [--jobs 4] [--rounds 3] [--seconds 40]
        [--set KEY=VALUE] [--out benchmarks/results]
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
from flatout.runs.tables import read_table

MODES = ("off", "auto")
WARM_UP_STEPS = 10


def write_recipe(folder, options):
    never = 10**6
    values = {
        "name": "shared", "device": "emulated", "emulated": {"base_seconds": 0.001, "seconds_per_sample": 0.0},
        "data": {"path": str(options.data.absolute()), "view": "train-224", "eval_view": "eval-224", "batch_size": 256},
        "model": {"name": "resnet18"}, "train": {"epochs": never}, "stop": {"max_seconds": options.seconds},
        "validate": {"every_epochs": never}, "checkpoint": {"every_epochs": never},
    }  # fmt: skip
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def turn(mode, recipe, folder, options):
    """Samples per second of all jobs of one turn, each of them, and the seconds they were counted over."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    settings = [f"data.shared={mode}", *options.set]
    flatout = str(Path(sys.executable).with_name("flatout"))
    runs = [folder / f"job{number}" for number in range(options.jobs)]
    jobs = [
        subprocess.Popen(
            [flatout, "train", str(recipe), "--run", str(run), *(f"--set={each}" for each in settings), "--json"],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for run in runs
    ]  # fmt: skip
    codes = [job.wait() for job in jobs]
    assert codes == [0] * options.jobs, (codes, *((run / "log.txt").read_text() for run in runs))
    steps = [[(float(row["time_unix"]), int(row["samples"])) for row in read_table(run / "steps.csv")] for run in runs]
    fewest = min(len(each) for each in steps)
    if fewest < 2 * WARM_UP_STEPS:
        raise SystemExit(
            f"a job made {fewest} steps in {options.seconds:g} s, {2 * WARM_UP_STEPS} are needed; use more --seconds"
        )
    begin, end = max(each[WARM_UP_STEPS][0] for each in steps), min(each[-1][0] for each in steps)
    rates = [sum(samples for at, samples in each if begin < at <= end) / (end - begin) for each in steps]
    return sum(rates), rates, end - begin


def spread(values):
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found, foreign = {mode: [] for mode in MODES}, []
    for number in range(options.rounds):
        for mode in MODES[:: 1 if number % 2 else -1]:
            foreign.append(psutil.cpu_percent(interval=1) / 100)
            with tempfile.TemporaryDirectory() as name:
                rate, each, seconds = turn(mode, write_recipe(Path(name), options), Path(name), options)
            found[mode].append(rate)
            print(f"{time.strftime('%H:%M:%S')} {mode} {rate:,.0f}/s in {seconds:.0f} s,", [round(r) for r in each])
    ratios = [auto / off for auto, off in zip(found["auto"], found["off"], strict=True)]
    low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
    text = f"""| data.shared | samples/s of {options.jobs} jobs, median (least to most) |
|---|---|
| off | {spread(found["off"])} |
| auto | {spread(found["auto"])} |

`auto` over `off`: **{middle:.2f}** ({low:.2f} to {high:.2f}) by round; issue 17 asks for at least 3.3.
CPU in use by others in the second before each turn: {", ".join(f"{share:.0%}" for share in foreign)}.
"""
    publish("shared-train", "Four flatout train processes, shared batches against none", text, options.out)


if __name__ == "__main__":
    main()
