"""What `flatout evaluate` and `classify` lose beside the slower of their loader and their model.

Each round measures, one after the other: the loader alone over the validation split, the model alone on one prepared
batch as often as there are batches, `evaluate` over the split, and `classify` over its files. One worker loads on one
core, and the loop has the other: on a core that both share, nobody could have the speed of either alone. The first two
models wait as an accelerator does, the third computes.

    python benchmarks/evaluation.py [--pictures 6000] [--rounds 5] [--out benchmarks/results]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

import flatout
from dated_results import publish
from flatout.commands.evaluate import open_for_evaluation
from flatout.data.source.pictures import picture_split
from flatout.data.source.shapes import make_shapes
from flatout.trained.evaluation import evaluate_trained
from flatout.trained.opening import TrainedRun

BATCH, CLASSES, SIDE, PICTURE_SIDE, DRAWN = 64, 4, 96, 384, 16
WAITS = """
import time
from torch import nn


class Waits(nn.Module):
    def __init__(self, classes, seconds_per_batch=0.0):
        super().__init__()
        self.head, self.seconds = nn.Linear(3, classes), seconds_per_batch

    def forward(self, images):
        until = time.perf_counter() + self.seconds
        logits = self.head(images[:, :, 0, 0])
        while (left := until - time.perf_counter()) > 0:
            time.sleep(left)
        return logits
"""


def make_pictures(folder: Path, count: int) -> None:
    """A few are drawn; the others are links to them."""
    for _ in make_shapes(folder, CLASSES, 2 * BATCH // CLASSES, PICTURE_SIDE, DRAWN):
        pass
    for kind in (folder / "val").iterdir():
        drawn = sorted(kind.iterdir())
        for number in range(DRAWN, count // CLASSES):
            (kind / f"{number:06d}-again.jpg").hardlink_to(drawn[number % DRAWN])


def train(folder: Path, name: str, model: dict[str, Any]) -> Path:
    recipe = {
        "name": name,
        "device": "cpu",
        "threads": 1,
        "data": {
            "path": str(folder / "pictures"), "view": "drawn", "eval_view": "plain", "batch_size": BATCH,
            "workers": 1, "cache": "off",
        },
        "views": {"drawn": {"base": "train-64", "size": SIDE}, "plain": {"base": "eval-64", "size": SIDE}},
        "model": model,
        "train": {"epochs": 1, "max_steps": 1},
        "validate": {"every_epochs": 1},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    return flatout.train(folder / f"{name}.yaml", run=folder / "runs" / name).directory


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def load_all(trained: TrainedRun) -> Any:
    opened, config = trained.opened, trained.config
    assert opened is not None
    workers = opened.choose_workers(config.data, "cpu", opened.val_plan)
    with closing(opened.open_source(opened.val_plan, config.data, workers, False, "cpu", epochs=1)) as source:
        return [len(batch.sample_ids) for batch in source.epoch(0)]


def compute_all(trained: TrainedRun, batch: Any, batches: int) -> None:
    learner = trained.learner
    with learner.evaluating(), learner.precision.autocast():
        for _ in range(batches):
            trained.task.evaluate(learner.compute, trained.task.to_device(batch, learner.device.torch))


def one_batch(trained: TrainedRun) -> Any:
    opened, config = trained.opened, trained.config
    assert opened is not None
    with closing(opened.open_source(opened.val_plan, config.data, 0, False, "cpu", epochs=1)) as source:
        return next(iter(source.epoch(0)))


def measure(run: Path, rounds: int) -> dict[str, list[float]]:
    """Samples a second of each, round by round."""
    trained, model = open_for_evaluation(run), flatout.load(run)
    files = sorted(map(str, (run.parents[1] / "pictures/val").rglob("*.jpg")))
    batch, count = one_batch(trained), len(files)
    workers = trained.config.data.workers
    work: dict[str, Callable[[], Any]] = {
        "loader": lambda: load_all(trained),
        "model": lambda: compute_all(trained, batch, -(-count // BATCH)),
        "evaluate": lambda: evaluate_trained(trained),
        "classify": lambda: sum(1 for _ in model.stream(picture_split(files), workers)),
    }
    for each in work.values():
        each()  # files into the page cache
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, each in work.items():
            found[name].append(count / seconds_of(each))
    return found


def row(name: str, found: dict[str, list[float]]) -> str:
    rates = {key: statistics.median(values) for key, values in found.items()}
    cells = [name, *(f"{rates[key]:,.0f}" for key in ("loader", "model", "evaluate", "classify"))]
    for key in ("evaluate", "classify"):
        parts = [a / min(b, c) for a, b, c in zip(found[key], found["loader"], found["model"], strict=True)]
        cells.append(f"**{statistics.median(parts):.3f}** ({min(parts):.3f} to {max(parts):.3f})")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pictures", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="flatout-evaluation-") as name:
        folder = Path(name)
        make_pictures(folder / "pictures", arguments.pictures)
        (folder / "waits.py").write_text(WAITS)
        waits = {"name": f"{folder / 'waits.py'}:Waits"}
        probe = open_for_evaluation(train(folder, "probe", waits))
        load_all(probe)
        seconds = BATCH * seconds_of(lambda: load_all(probe)) / arguments.pictures  # that the loader needs for a batch
        for title, pace in (("a device four times as fast as the loader", 0.25), ("a device half as fast", 2.0)):
            model = {**waits, "options": {"seconds_per_batch": pace * seconds}}
            rows.append(row(title, measure(train(folder, f"pace-{pace:g}", model), arguments.rounds)))
            print(rows[-1], flush=True)
        computed = train(folder, "computed", {"name": "resnet18", "stem": "standard", "width": 0.25})
        rows.append(row("ResNet-18 of width 0.25 on the other core", measure(computed, arguments.rounds)))
    head = "| samples/s, median | loader | model | evaluate | classify | evaluate of the slower | classify of the slower |\n|---|---:|---:|---:|---:|---:|---:|"
    text = f"{arguments.pictures:,} JPEGs of {PICTURE_SIDE} pixels to {SIDE}, batches of {BATCH}, {arguments.rounds} rounds; the range is over rounds.\n\n{head}\n"
    publish("evaluation", "Evaluation beside its loader and its model", text + "\n".join(rows) + "\n", arguments.out)


if __name__ == "__main__":
    main()
