"""A sweep beside whole runs of all of its configurations: one after another, and all at the same time.

    python benchmarks/sweep.py [--device emulated|cpu] [--epochs 8] [--turns 2] [--dir DIR] [--out benchmarks/results]

All three look for the best of eight learning rates on the same shapes, by `flatout` with its defaults (runs one after another
use all cores). Figures are the ratios of wall times, and how far the sweep's winner, trained to its end, is from the best
of the grid. An emulated device learns nothing: there every decision is as good as any other, and only times count; each
job has a device of its own. With 2 idle cores about 8 minutes emulated and 10 on the CPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dated_results import publish

RATES = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0]
FLATOUT = [sys.executable, "-m", "flatout"]
CLASSES = 8


@dataclass(frozen=True)
class Turn:
    sweep_seconds: float
    found: dict[str, Any]  # what the sweep says
    alone_seconds: float
    together_seconds: float
    grid: dict[float, float]  # last top-1 of each rate

    @property
    def winner(self) -> float:
        return float(self.found["rows"][0]["values"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="emulated", choices=["emulated", "cpu"])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=400, help=f"of each of {CLASSES} classes")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where to work; what is there of earlier turns is deleted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.dir or Path(tempfile.mkdtemp(prefix="flatout-sweep-"))
    folder.mkdir(parents=True, exist_ok=True)
    recipe, load = write_recipe(folder, options), os.getloadavg()[0]
    turns = []
    for number in range(options.turns):  # in turns: a machine that changes its pace does so for all
        place = folder / f"turn-{number}"
        shutil.rmtree(place, ignore_errors=True)
        sweep_seconds, found = swept(place / "sweep", recipe)
        alone_seconds, grid = separate(place / "alone", recipe, 1)
        together_seconds, _ = separate(place / "together", recipe, len(RATES))
        turns.append(Turn(sweep_seconds, found, alone_seconds, together_seconds, grid))
        print(f"turn {number}: {sweep_seconds:.0f}, {alone_seconds:.0f}, {together_seconds:.0f} s", file=sys.stderr)
    publish(
        f"sweep-{options.device}", "A sweep beside eight whole runs", told(turns, options.device, load), options.out
    )


def write_recipe(folder: Path, options: argparse.Namespace) -> Path:
    data = folder / "shapes"
    if not data.exists():
        size = ["--classes", str(CLASSES), "--samples-per-class", str(options.samples), "--size", "64"]
        subprocess.run([*FLATOUT, "data", "make", "shapes", data, *size], check=True, stdout=subprocess.DEVNULL)
    values = {
        "name": "tiny",
        "device": options.device,
        "data": {"path": str(data), "view": "train-64", "eval_view": "eval-64", "batch_size": 32},
        "model": {"name": "resnet18", "stem": "standard", "width": 0.25},
        "train": {"epochs": options.epochs},
    }
    if options.device == "emulated":
        values["emulated"] = {"base_seconds": 0.005, "seconds_per_sample": 0.0002}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def swept(folder: Path, recipe: Path) -> tuple[float, dict[str, Any]]:
    over = ",".join(map(str, RATES))
    command = [*FLATOUT, "sweep", recipe, "--over", f"train.lr={over}", "--metric", "top1", "--runs", folder, "--json"]
    began = time.monotonic()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return time.monotonic() - began, json.loads(done.stdout)


def separate(folder: Path, recipe: Path, at_a_time: int) -> tuple[float, dict[float, float]]:
    """Seconds of all, and the last top-1 of each rate; one that came to nothing has 0."""

    def train(rate: float) -> float:
        run = folder / str(rate)
        command = [*FLATOUT, "train", recipe, f"--set=train.lr={rate}", "--run", run]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        said = json.loads((run / "summary.json").read_text())
        return float((said.get("accuracy") or {}).get("top1") or 0.0)

    began = time.monotonic()
    with ThreadPoolExecutor(at_a_time) as threads:
        found = dict(zip(RATES, threads.map(train, RATES), strict=True))
    return time.monotonic() - began, found


def told(turns: list[Turn], device: str, load: float) -> str:
    lines = [
        f"Load when it began: {load:.1f}.",
        "",
        "| turn | sweep, s | 8 runs, one after another, s | ratio | 8 at the same time, s | ratio | winner: top-1 % "
        "| best of the grid: top-1 % | epochs of the sweep |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for number, turn in enumerate(turns):
        best, learns = max(turn.grid, key=lambda rate: turn.grid[rate]), device != "emulated"
        cells = [
            str(number),
            f"{turn.sweep_seconds:.1f}",
            f"{turn.alone_seconds:.1f}",
            f"{turn.sweep_seconds / turn.alone_seconds:.2f}",
            f"{turn.together_seconds:.1f}",
            f"{turn.sweep_seconds / turn.together_seconds:.2f}",
            f"{turn.found['winner']}: {100 * turn.winner:.1f}" if learns else "n/a",
            f"train.lr={best:g}: {100 * turn.grid[best]:.1f}" if learns else "n/a",
            f"{turn.found['epochs_trained']} of {turn.found['epochs_whole']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
