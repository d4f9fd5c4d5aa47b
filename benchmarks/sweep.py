"""A sweep beside whole runs of all of its configurations, one after another, as one does it by hand.

    python benchmarks/sweep.py [--device emulated|cpu] [--epochs 8] [--dir DIR] [--out benchmarks/results]

Both find the best of eight learning rates on the same shapes. The figure is the ratio of their wall times, and how far
the sweep's winner, trained to the end, is from the best of the grid. Runs that a directory holds already are not made
again, so that an interrupted benchmark goes on; their recorded seconds count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import yaml

RATES = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0]
FLATOUT = [sys.executable, "-m", "flatout"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="emulated", choices=["emulated", "cpu"])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=400, help="of each of 8 classes")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.dir or Path(tempfile.mkdtemp(prefix="flatout-sweep-"))
    folder.mkdir(parents=True, exist_ok=True)
    recipe = write_recipe(folder, options)
    began_at_load = os.getloadavg()[0]
    # in turns: first the sweep, then the grid, then both again in other folders
    turns = [(swept(folder / f"sweep-{turn}", recipe), alone(folder / f"grid-{turn}", recipe)) for turn in range(2)]
    text = told(turns, options, began_at_load)
    print(text)
    if options.out is not None:
        (options.out / f"{date.today()}-sweep-{options.device}.md").write_text(text, encoding="utf-8")


def write_recipe(folder: Path, options: argparse.Namespace) -> Path:
    data = folder / "shapes"
    if not data.exists():
        size = ["--classes", "8", "--samples-per-class", str(options.samples), "--size", "64"]
        subprocess.run([*FLATOUT, "data", "make", "shapes", data, *size], check=True, stdout=subprocess.DEVNULL)
    values = {
        "name": "tiny",
        "device": options.device,
        "threads": 1,
        "data": {"path": str(data), "view": "train-64", "eval_view": "eval-64", "batch_size": 32},
        "model": {"name": "resnet18", "stem": "small", "width": 0.125},
        "train": {"epochs": options.epochs},
        "checkpoint": {"every_steps": None},
    }
    if options.device == "emulated":
        values["emulated"] = {"base_seconds": 0.001, "seconds_per_sample": 0.00002}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def swept(folder: Path, recipe: Path) -> tuple[float, float, dict]:
    """Seconds, top-1 of the winner at its end, and what the sweep said."""
    over = ",".join(map(str, RATES))
    began = time.monotonic()
    done = subprocess.run(
        [*FLATOUT, "sweep", recipe, "--over", f"train.lr={over}", "--metric", "top1", "--runs", folder, "--json"],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    seconds, found = time.monotonic() - began, json.loads(done.stdout)
    return seconds, found["rows"][0]["values"][-1], found


def alone(folder: Path, recipe: Path) -> tuple[float, dict[float, float]]:
    """Seconds of all, and the last top-1 of each rate."""
    began, found = time.monotonic(), {}
    for rate in RATES:
        run = folder / str(rate)
        subprocess.run([*FLATOUT, "train", recipe, f"--set=train.lr={rate}", "--run", run], stderr=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, check=False)  # fmt: skip
        said = json.loads((run / "summary.json").read_text())
        found[rate] = float((said.get("accuracy") or {}).get("top1") or 0.0)
    return time.monotonic() - began, found


def told(turns: list, options: argparse.Namespace, load: float) -> str:
    lines = [
        f"# A sweep beside eight whole runs, {date.today()}",
        "",
        f"`python benchmarks/sweep.py --device {options.device} --epochs {options.epochs} --samples {options.samples}`, "
        f"{len(os.sched_getaffinity(0))} cores, load {load:.1f} when it began.",
        "",
        "| turn | sweep, s | 8 runs, s | ratio | winner's top-1 | grid's best | epochs of the sweep |",
        "|---|---|---|---|---|---|---|",
    ]
    for turn, ((seconds, value, found), (whole, grid)) in enumerate(turns):
        epochs = f"{found['epochs_trained']} of {found['epochs_whole']}"
        lines.append(
            f"| {turn} | {seconds:.1f} | {whole:.1f} | {seconds / whole:.2f} | {found['winner']}: {100 * value:.1f} % | "
            f"{100 * max(grid.values()):.1f} % | {epochs} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
