"""The first thing a newcomer runs: data, training and a report in one go."""

from pathlib import Path
from typing import Any

from flatout.commands.make_data import make_shapes_dataset
from flatout.commands.train import train_run
from flatout.machine.budgets import cache_folder
from flatout.runs import Run

CLASSES, SAMPLES_PER_CLASS, SIZE = 8, 150, 32
RECIPE: dict[str, Any] = {
    "name": "demo",
    "device": "cpu",
    "data": {"view": "demo-train", "eval_view": "demo-eval", "batch_size": 64, "workers": 1},
    "views": {"demo-train": {"base": "train-64", "size": SIZE}, "demo-eval": {"base": "eval-64", "size": SIZE}},
    "model": {"name": "resnet18", "stem": "small", "width": 0.25},
    "train": {"epochs": 6, "lr": 0.2, "precision": "fp32"},
}
NEXT_STEPS = """
What to type next:
  flatout report {run}                                    this report again
  flatout predict {run} --if data.workers=2               what a change would buy
  flatout train recipes/demo.yaml --set train.epochs=10   the same as a recipe, trained for longer
  flatout config show recipes/demo.yaml                   every key and where its value comes from
  flatout train --help"""


def run_demo(run: Path, quiet: bool) -> Run:
    """Always from the start; an older demo is moved aside."""
    data = demo_data_folder()
    if not (data / ".complete").exists():
        make_shapes_dataset(data, CLASSES, SAMPLES_PER_CLASS, SIZE, None, 0, quiet)
        (data / ".complete").touch()
    return train_run(RECIPE, {"data.path": str(data)}, run, fresh=run.exists(), quiet=quiet, whole_process=True)


def demo_data_folder() -> Path:
    """Where the demo's dataset is kept between runs."""
    return cache_folder() / f"shapes-{CLASSES}x{SAMPLES_PER_CLASS}-{SIZE}"
