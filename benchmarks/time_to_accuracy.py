"""The same accuracy, sooner: seconds, FLOPs and dollars to the accuracy of a well-tuned plain recipe.

tiny-imagenet-40 at 64 px, on a ResNet-18 of half the width with the standard stem, small enough for runs of minutes on 2
cores. `A` is the plain script (SGD, steps, flip and crop, nothing else), `B` the plain recipe tuned well (one-cycle, label
smoothing, the best of a few learning rates), `fast` is `flatout train --fast` for half of the epochs. The target is the
mean final top-1 of B. Others change one thing: `B+muon` adds it to B, `fast-sizes` leaves it out of fast.

Each run is a run directory under --work. One runs at a time; what is complete is skipped, what was killed is resumed: the
same command again goes on.

    python benchmarks/time_to_accuracy.py --data ../shared/data/tiny-imagenet-40.tar --work /tmp/faster \
        [--only A,B,fast] [--seeds 3] [--epochs 16] [--ablation] [--out benchmarks/results]
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from dated_results import current_commit, describe_machine, own_command, publish
from flatout.config.loading import load_config
from flatout.data.pixels.views import resolve_view
from flatout.runs.tables import effective_rows, read_table
from flatout.tasks.classification.models import build_model
from flatout.tasks.classification.resnet_extras import Extras

RATES = (0.05, 0.1, 0.2, 0.4)
SEARCH_SEED, SEARCH_SHARE = 1000, 4  # the search trains a quarter of the epochs, with a seed of its own
PLAIN = {"train.schedule": "step", "train.label_smoothing": 0.0, "train.warmup_epochs": 0.0, "train.lr": 0.1}
TUNED = {"train.schedule": "one-cycle", "train.label_smoothing": 0.1}
FAST = {"speedups": "auto", "train.label_smoothing": 0.1}
ADDED: dict[str, dict[str, Any]] = {
    "flip": {"views.train-64": {"base": "train-64", "alternate_flip": True}},
    "muon": {"train.optimizer": "muon", "train.lr": 0.01, "train.momentum": 0.95, "train.weight_decay": 0.01},
    "lookahead": {"train.lookahead": 5},
    "ema": {"train.ema": 0.99},
    "blur": {"model.blur_pool": True},
    "squeeze": {"model.squeeze_excite": True},
    "depth": {"model.stochastic_depth": 0.1},
    "gamma": {"model.zero_gamma": False},
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "flip": {"views.train-64.alternate_flip": False},
    "sizes": {"views.train-64.sizes": {}},
    "one-cycle": {"train.schedule": "cosine"},
}


@dataclass(frozen=True)
class Point:
    """After one epoch, from the beginning of the run on."""

    epoch: int
    seconds: float
    flops: float
    top1: float


@dataclass(frozen=True)
class Trained:
    variant: str
    seed: int
    curve: list[Point]
    wall_seconds: float
    attempts: int


@dataclass(frozen=True)
class Bench:
    data: str
    work: Path
    epochs: int
    model: dict[str, Any]
    usd_per_hour: float

    def recipe(self, name: str, changes: dict[str, Any], epochs: int, seed: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            "name": name,
            "device": "cpu",
            "data": {"path": self.data, "view": "train-64", "eval_view": "eval-64", "batch_size": 128},
            "model": self.model,
            "train": {"epochs": epochs, "seed": seed},
            "checkpoint": {"keep_top": 1},
        }
        for key, value in changes.items():
            *parents, last = key.split(".")
            section = values
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        return values

    def run(self, variant: str, changes: dict[str, Any], epochs: int, seed: int) -> Trained:
        name = f"{variant}-{epochs}-epochs-seed-{seed}"
        recipe, folder = self.work / f"{name}.yaml", self.work / "runs" / name
        text = yaml.safe_dump(self.recipe(name, changes, epochs, seed))
        if recipe.exists() and recipe.read_text() != text:
            sys.exit(f"{recipe} is of other settings; use another --work, or delete it and {folder}")
        recipe.write_text(text)
        if _summary(folder).get("status") != "completed":
            print(f"{name} ...", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "flatout", "train", str(recipe), "--run", str(folder), "--json"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        said = _summary(folder)
        return Trained(variant, seed, _curve(folder), said["time"]["wall_seconds"], said["attempts"])

    def best_rate(self) -> float:
        """Of B, by its top-1 after short runs that have a whole cycle each."""
        epochs = max(1, self.epochs // SEARCH_SHARE)
        found = {
            rate: self.run(f"search-lr-{rate:g}", {**TUNED, "train.lr": rate}, epochs, SEARCH_SEED) for rate in RATES
        }
        return max(found, key=lambda rate: found[rate].curve[-1].top1)


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    read: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return read


def _curve(folder: Path) -> list[Point]:
    """Seconds are those of steps, waits for data included: validations, checkpoints and starts are the same for all,
    and steps that were done again after a kill count once."""
    config = load_config(folder / "config.yaml").config
    view = resolve_view(config.data.view, config.views)
    steps = effective_rows(read_table(folder / "steps.csv"), "step")
    classes = len(json.loads((folder / "classes.json").read_text()))
    made = json.dumps(config.model.model_dump(mode="json"), sort_keys=True)
    seconds = flops = 0.0
    curve = []
    for row in effective_rows(read_table(folder / "epochs.csv"), "epoch"):
        epoch = int(row["epoch"])
        mine = [step for step in steps if int(step["epoch"]) == epoch]
        seconds += sum(float(step["step_seconds"]) for step in mine)
        flops += sum(int(step["samples"]) for step in mine) * flops_of_sample(made, classes, view.side(epoch))
        curve.append(Point(epoch, seconds, flops, float(row["top1"])))
    return curve


@cache
def flops_of_sample(model: str, classes: int, side: int) -> float:
    """Forward and backward, counted by torch; without the optimizer."""
    values = json.loads(model)
    extras = Extras(values["zero_gamma"], values["blur_pool"], values["squeeze_excite"])
    built = build_model(values["name"], classes, values["stem"], values["width"], extras=extras)
    with FlopCounterMode(display=False) as counter:
        built(torch.zeros(2, 3, side, side)).sum().backward()
    return counter.get_total_flops() / 2


def reached(curve: list[Point], target: float) -> Point | None:
    """The first epoch at whose end the target is reached."""
    return next((point for point in curve if point.top1 >= target), None)


def variants(rate: float, ablation: bool) -> dict[str, tuple[dict[str, Any], bool]]:
    """Changes of each, and whether it is a fast one, of fewer epochs."""
    tuned, fast = {**TUNED, "train.lr": rate}, {**FAST, "train.lr": rate}
    found: dict[str, tuple[dict[str, Any], bool]] = {"A": (PLAIN, False), "B": (tuned, False), "fast": (fast, True)}
    if ablation:
        found |= {f"B+{name}": ({**tuned, **more}, False) for name, more in ADDED.items()}
        found |= {f"fast-{name}": ({**fast, **less}, True) for name, less in LEFT_OUT.items()}
    return found


def spread(values: list[float], form: str) -> str:
    if not values:
        return "not reached"
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{form} ± {form}".format(statistics.mean(values), deviation)


def table(runs: dict[str, list[Trained]], target: float, usd_per_hour: float) -> str:
    lines = [
        f"Target: {100 * target:.2f} % top-1, the mean of B at its end. Seconds are of steps, data waits included;",
        f"dollars at {usd_per_hour:g} an hour. Mean ± standard deviation over seeds; to the target, over those that",
        "reached it. Wall seconds are of the whole run, with start, validations and checkpoints.",
        "",
        "| variant | seeds | epochs | final top-1 % | reached by | seconds to target | TFLOP to target | $ to target "
        "| wall seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, mine in runs.items():
        points = [point for each in mine if (point := reached(each.curve, target)) is not None]
        cells = [
            name,
            str(len(mine)),
            str(len(mine[0].curve)),
            spread([100 * each.curve[-1].top1 for each in mine], "{:.2f}"),
            f"{len(points)} of {len(mine)}",
            spread([point.seconds for point in points], "{:.0f}"),
            spread([point.flops / 1e12 for point in points], "{:.1f}"),
            spread([point.seconds / 3600 * usd_per_hour for point in points], "{:.5f}"),
            spread([each.wall_seconds for each in mine], "{:.0f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True, help="run directories; a second call goes on in them")
    parser.add_argument("--only", help="names of variants, with commas; B is always there, it sets the target")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--fast-epochs", type=int, help="of the fast variants (half of --epochs)")
    parser.add_argument("--lr", type=float, help="of B and fast, instead of the search")
    parser.add_argument("--width", type=float, default=0.5)
    parser.add_argument("--stem", choices=["standard", "small"], default="standard")
    parser.add_argument("--usd-per-hour", type=float, default=0.085, help="of a machine with 2 cores")
    parser.add_argument("--ablation", action="store_true", help="each method added to B, and left out of fast")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = {"name": "resnet18", "stem": options.stem, "width": options.width}
    data = str(Path(options.data).resolve())
    bench = Bench(data, options.work.resolve(), options.epochs, model, options.usd_per_hour)
    rate = options.lr or bench.best_rate()
    known = variants(rate, options.ablation or options.only is not None)
    asked = list(known) if options.only is None else options.only.split(",")
    if unknown := [name for name in asked if name not in variants(rate, True)]:
        parser.error(f"no variant is called {unknown[0]!r}; there are {', '.join(variants(rate, True))}")
    wanted = [name for name in known if name in asked or name == "B"]
    fast_epochs = options.fast_epochs or max(1, options.epochs // 2)
    runs: dict[str, list[Trained]] = {name: [] for name in wanted}
    for seed in range(options.seeds):
        for name in wanted:  # seeds outside: a machine that changes its pace does so for all
            changes, is_fast = known[name]
            runs[name].append(bench.run(name, changes, fast_epochs if is_fast else options.epochs, seed))
    target = statistics.mean(each.curve[-1].top1 for each in runs["B"])
    text = f"Learning rate of B and fast: {rate:g}; model: {model}.\n\n{table(runs, target, options.usd_per_hour)}"
    publish("time-to-accuracy", "Time to accuracy", text, options.out)
    if options.out is not None:
        folder = options.out if options.out.is_dir() else options.out.parent
        document = {
            "command": own_command(),
            "commit": current_commit(),
            "machine": describe_machine(),
            "target": target,
            "lr": rate,
            "runs": [asdict(each) for mine in runs.values() for each in mine],
        }
        (folder / f"{date.today().isoformat()}-time-to-accuracy.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
