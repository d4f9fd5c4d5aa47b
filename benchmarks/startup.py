"""From typing `flatout train` to the first batch, beside a bare script that does only what no training can do without.

The bare script imports torch, builds the same model and reads the first batch by our loader. Both are fresh processes,
in turns; the clock starts before the process is started. `flatout train` is read from its run: the first step's row of
steps.csv says when its batch was there, summary.json what took the time until then.

    python benchmarks/startup.py [--rounds 7] [--out FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from dated_results import publish
from flatout.data.source.shapes import make_shapes
from flatout.runs.tables import read_table

CLASSES, BATCH = 8, 64

TORCH = "import time, torch; print(time.time())"
BARE = """
import sys, time
import torch
from flatout.tasks.classification.models import build_model
build_model("resnet18", int(sys.argv[2]), "small", 0.5, False)
import flatout
source = flatout.open_batches(sys.argv[1], view="train-64", batch_size=int(sys.argv[3]))
next(iter(source.epoch(0)))
print(time.time())
source.close()
"""


def write_recipe(folder):
    values = {
        "name": "startup", "device": "cpu",
        "data": {"path": str(folder / "data"), "view": "train-64", "eval_view": "eval-64", "batch_size": BATCH},
        "model": {"name": "resnet18", "stem": "small", "width": 0.5}, "train": {"epochs": 1, "max_steps": 1},
    }  # fmt: skip
    path = folder / "startup.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def script(code, *arguments):
    started = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1]) - started


def trained(recipe, run):
    """Seconds until the first batch was there, and what the run says took them."""
    command = [str(Path(sys.executable).with_name("flatout")), "train", str(recipe), "--run", str(run), "--json"]
    started = time.time()
    subprocess.run(command, capture_output=True, check=True)
    row = read_table(run / "steps.csv")[0]
    begun = float(row["time_unix"]) - float(row["step_seconds"]) + float(row["data_wait_seconds"])
    return begun - started, json.loads((run / "summary.json").read_text())["time"]["startup_parts"]


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {"import torch": [], "bare script": [], "flatout train": []}
    parts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in make_shapes(folder / "data", CLASSES, 64, 64, val_per_class=4):
            pass
        recipe = write_recipe(folder)
        for number in range(-1, options.rounds):
            torch_seconds = script(TORCH)
            bare = script(BARE, folder / "data", CLASSES, BATCH)
            ours, own_parts = trained(recipe, folder / f"run{number}")
            if number >= 0:  # the first round reads torch from the disk
                for key, value in zip(found, (torch_seconds, bare, ours), strict=True):
                    found[key].append(value)
                parts.append(own_parts)
    ratios = [ours / bare for ours, bare in zip(found["flatout train"], found["bare script"], strict=True)]
    lines = ["| until the first batch | seconds, median (least to most) |", "|---|---|"]
    lines += [f"| {key} | {spread(values)} |" for key, values in found.items()]
    lines += [f"| ... of it {key} | {spread([each[key] for each in parts])} |" for key in parts[0]]
    medians = statistics.median(found["flatout train"]) / statistics.median(found["bare script"])
    lines += [
        "",
        f"`flatout train` over the bare script: **{medians:.2f}** of the medians, {spread(ratios)} by round, "
        "in turn; issue 17 asks for at most 1.3.",
    ]
    text = "\n".join(lines) + "\n"
    publish("startup", "From the command to the first batch", text, options.out)


if __name__ == "__main__":
    main()
