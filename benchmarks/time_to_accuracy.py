"""The same accuracy, sooner: seconds, FLOPs and dollars to the accuracy of a well-tuned plain recipe.

tiny-imagenet-40 at 64 px, on a ResNet-18 with the standard stem and 3/8 of the width: a run of minutes on 2 cores.
`A` is plain_training.py (DataLoader, SGD, steps, flip and crop, nothing else), `B` the plain recipe tuned well, by flatout
(one-cycle, label smoothing, the best of a few learning rates), `fast` is the recipe of B as it is with `flatout train --fast`.
The target is the mean final top-1 of B. Others change one thing: `B+muon` adds it to B, `fast+muon` to fast, and
`fast-kernels` leaves it out.

Seconds are those of the wall clock from the start of the process on, with imports, validations and checkpoints. One run at
a time; each leaves its result under --work, and the same command again goes on with those that are missing (a run that
was killed begins again, so that its seconds are those of one attempt). --most-minutes begins no run that would not fit.

    python benchmarks/time_to_accuracy.py --data ../shared/data/tiny-imagenet-40.tar --work /tmp/faster \
        [--only A,B,fast] [--seeds 3] [--ablation] [--ablation-seeds 1] [--most-minutes 60] [--out benchmarks/results]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

from dated_results import current_commit, describe_machine, own_command, publish
from flatout.config.loading import load_config
from flatout.config.schema import Config, ModelConfig
from flatout.data.pixels.views import resolve_view
from flatout.engine.parameters import freeze_until
from flatout.runs.tables import effective_rows, read_table
from flatout.tasks.classification.models import build_model
from flatout.tasks.classification.resnet_extras import Extras

HERE = Path(__file__).parent
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
SEARCH_SEED, SEARCH_SHARE = 1000, 4  # the search trains a quarter of the epochs, with a seed of its own
TUNED = {"train.schedule": "one-cycle", "train.label_smoothing": 0.1}
VIEW = "views.train-64"
ADDED: dict[str, dict[str, Any]] = {
    "sizes": {VIEW: {"base": "train-64", "sizes": {0: 32, 7: 48, 12: 64}}},
    "bf16": {"train.precision": "bf16"},
    "kernels": {"train.precision": "bf16", "train.kernels": "fused"},
    "flip": {VIEW: {"base": "train-64", "alternate_flip": True}},
    "muon": {"train.optimizer": "muon", "train.lr": 0.01, "train.momentum": 0.95, "train.weight_decay": 0.01},
    "lookahead": {"train.lookahead": 5},
    "ema": {"train.ema": 0.99},
    "swa": {"train.swa": 0.8},
    "selective": {"train.selective": [0.5, 0.9]},
    "freeze": {"model.freeze_from": {8: ["conv1", "bn1"], 11: ["layer1"], 14: ["layer2"]}},
    "patch": {"model.stem": "patch"},
    "blur": {"model.blur_pool": True},
    "squeeze": {"model.squeeze_excite": True},
    "depth": {"model.stochastic_depth": 0.1},
    "gamma": {"model.zero_gamma": False},
}
LEFT_OUT: dict[str, dict[str, Any]] = {
    "kernels": {"train.kernels": "torch"},
    "bf16": {"train.precision": "fp32"},  # and the kernels, which are of bf16
    "flip": {f"{VIEW}.alternate_flip": False},
}


@dataclass(frozen=True)
class Point:
    """After the validation of one epoch, from the beginning of the process on."""

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
    load: float  # of the machine, before it began
    step_seconds: float | None = None  # of all steps, data waits included; A does not say

    @property
    def top1(self) -> float:
        return self.curve[-1].top1


class TimeIsUp(Exception):
    pass


@dataclass
class Bench:
    data: Path
    work: Path
    epochs: int
    model: dict[str, Any]
    most_seconds: float
    began: float = field(default_factory=time.monotonic)
    walls: dict[str, float] = field(default_factory=dict)  # of the last run of each variant

    def recipe(self, name: str, changes: dict[str, Any], epochs: int, seed: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            "name": name,
            "device": "cpu",
            "data": {"path": str(self.data), "view": "train-64", "eval_view": "eval-64", "batch_size": 128},
            "model": dict(self.model),
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
        """What is done already is read."""
        name = f"{variant}-{epochs}-epochs-seed-{seed}"
        recipe, folder, result = (self.work / each for each in (f"{name}.yaml", f"runs/{name}", f"{name}.json"))
        text = yaml.safe_dump(self.recipe(name, changes, epochs, seed))
        if recipe.exists() and recipe.read_text() != text:
            sys.exit(f"{recipe} is of other settings; use another --work, or delete it and {result}")
        recipe.write_text(text)
        if not result.exists():
            self._make(variant, name, recipe, folder, result, epochs, seed)
        found = json.loads(result.read_text())
        found["curve"] = [Point(**point) for point in found["curve"]]
        self.walls[variant] = found["wall_seconds"]
        return Trained(**found)

    def _make(self, variant: str, name: str, recipe: Path, folder: Path, result: Path, epochs: int, seed: int) -> None:
        if time.monotonic() - self.began + self.walls.get(variant, 0.0) > self.most_seconds:
            raise TimeIsUp
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed: its seconds would be of two attempts
        folder.parent.mkdir(exist_ok=True)
        load, began_unix, began = os.getloadavg()[0], time.time(), time.monotonic()
        print(f"{name} ... (load {load:.1f})", file=sys.stderr, flush=True)
        if variant == "A":
            curve = self._plain(name, epochs, seed)
            step_seconds = None
        else:
            flags = ["--fast"] if variant.startswith("fast") else []
            command = [sys.executable, "-m", "flatout", "train", str(recipe), "--run", str(folder), "--json", *flags]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            curve, step_seconds = _curve(folder, began_unix)
        wall = time.monotonic() - began
        made = Trained(variant, seed, curve, wall, load, step_seconds)
        print(f"{name}: top-1 {100 * made.top1:.2f} %, {wall:.0f} s", file=sys.stderr, flush=True)
        result.write_text(json.dumps(asdict(made), indent=1))

    def _plain(self, name: str, epochs: int, seed: int) -> list[Point]:
        folder, curve = self.work / "unpacked", self.work / f"{name}.curve.json"
        root = next(folder.glob("*/train")).parent
        given = {"--curve": curve, "--epochs": epochs, "--seed": seed, "--width": self.model["width"]}
        given["--stem"] = self.model["stem"]
        words = [str(word) for pair in given.items() for word in pair]
        subprocess.run(
            [sys.executable, str(HERE / "plain_training.py"), str(root), *words], check=True, stdout=sys.stderr
        )
        classes, flops, points = len(list((root / "train").iterdir())), 0.0, []
        of_sample = flops_of_sample(_dumped(load_config({"model": self.model}).config.model), classes, 64, 0)
        for row in json.loads(curve.read_text()):
            flops += row["samples"] * of_sample
            points.append(Point(row["epoch"], row["seconds"], flops, row["top1"]))
        return points

    def unpack(self) -> None:
        """For the plain script, before any clock runs."""
        folder = self.work / "unpacked"
        if not folder.exists():
            with tarfile.open(self.data) as archive:
                archive.extractall(self.work / "unpacking", filter="data")
            (self.work / "unpacking").rename(folder)

    def best_rate(self) -> float:
        """Of B, by its top-1 after short runs that have a whole cycle each."""
        epochs = max(1, self.epochs // SEARCH_SHARE)
        found = {
            rate: self.run(f"search-lr-{rate:g}", {**TUNED, "train.lr": rate}, epochs, SEARCH_SEED) for rate in RATES
        }
        return max(found, key=lambda rate: found[rate].top1)


def _curve(folder: Path, began_unix: float) -> tuple[list[Point], float]:
    config = load_config(folder / "config.yaml").config
    steps = effective_rows(read_table(folder / "steps.csv"), "step")
    classes = len(json.loads((folder / "classes.json").read_text()))
    flops, curve = 0.0, []
    for row in effective_rows(read_table(folder / "epochs.csv"), "epoch"):
        epoch = int(row["epoch"])
        mine = [step for step in steps if int(step["epoch"]) == epoch]
        flops += sum(_flops_of_step(config, classes, epoch, step) for step in mine)
        curve.append(Point(epoch, float(row["time_unix"]) - began_unix, flops, float(row["top1"])))
    return curve, sum(float(step["step_seconds"]) for step in steps)


def _flops_of_step(config: Config, classes: int, epoch: int, step: dict[str, str]) -> float:
    model, side = _dumped(config.model), resolve_view(config.data.view, config.views).side(epoch)
    looked_at, skipped = int(step["samples"]), int(step.get("skipped_samples") or 0)
    judged = flops_of_sample(model, classes, side // 2 if side >= 64 else side, None) if skipped else 0.0
    return (looked_at - skipped) * flops_of_sample(model, classes, side, epoch) + looked_at * judged


def _dumped(model: ModelConfig) -> str:
    return json.dumps(model.model_dump(mode="json"), sort_keys=True)


@cache
def flops_of_sample(model: str, classes: int, side: int, epoch: int | None) -> float:
    """Forward and backward of an epoch, or forward alone, counted by torch; without the optimizer."""
    values = ModelConfig(**json.loads(model))
    extras = Extras(values.zero_gamma, values.blur_pool, values.squeeze_excite)
    built = build_model(values.name, classes, values.stem, values.width, extras=extras)
    freeze_until(built, values, epoch or 0)
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(epoch is not None):
        logits = built(torch.zeros(2, 3, side, side))
        if epoch is not None:
            logits.sum().backward()
    return counter.get_total_flops() / 2


def reached(curve: list[Point], target: float) -> Point | None:
    """The first epoch at whose end the target is reached."""
    return next((point for point in curve if point.top1 >= target), None)


def variants(rate: float) -> dict[str, dict[str, Any]]:
    """What each changes in the plain recipe; A is another program, and its recipe says nothing."""
    tuned = {**TUNED, "train.lr": rate}
    found: dict[str, dict[str, Any]] = {"A": {}, "B": tuned, "fast": tuned}
    found |= {f"{to}+{name}": {**tuned, **more} for to in ("B", "fast") for name, more in ADDED.items()}
    return found | {f"fast-{name}": {**tuned, **less} for name, less in LEFT_OUT.items()}


def spread(values: list[float], form: str) -> str:
    if not values:
        return "not reached"
    deviation = f" ± {form}".format(statistics.stdev(values)) if len(values) > 1 else ""
    return form.format(statistics.mean(values)) + deviation


def table(runs: dict[str, list[Trained]], target: float, usd_per_hour: float) -> str:
    whole = {name: statistics.mean(each.wall_seconds for each in runs[name]) for name in ("A", "B") if runs.get(name)}
    lines = [
        f"Target: {100 * target:.2f} % top-1, the mean of B at its end. Seconds are of the wall clock, from the start of the",
        f"process on; dollars at {usd_per_hour:g} an hour. Mean ± standard deviation over seeds; to the target, over those",
        "that reached it. Of A and of B: seconds to the target over the whole wall time of those runs.",
        "",
        "| variant | seeds | epochs | final top-1 % | wall s | steps s | reached by | s to target | of A | of B "
        "| TFLOP to target | $ to target |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, mine in runs.items():
        points = [point for each in mine if (point := reached(each.curve, target)) is not None]
        seconds = [point.seconds for point in points]
        shares = [f"{statistics.mean(seconds) / whole[one]:.2f}" if seconds and one in whole else "–" for one in "AB"]
        cells = [
            name,
            str(len(mine)),
            str(len(mine[0].curve)),
            spread([100 * each.top1 for each in mine], "{:.2f}"),
            spread([each.wall_seconds for each in mine], "{:.0f}"),
            spread([each.step_seconds for each in mine if each.step_seconds], "{:.0f}") if name != "A" else "–",
            f"{len(points)} of {len(mine)}",
            spread(seconds, "{:.0f}"),
            *shares,
            spread([point.flops / 1e12 for point in points], "{:.1f}"),
            spread([point.seconds / 3600 * usd_per_hour for point in points], "{:.5f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def make_all(bench: Bench, known: dict[str, dict[str, Any]], wanted: dict[str, int]) -> dict[str, list[Trained]]:
    """`wanted` has the number of seeds of each variant; what there was time for."""
    runs: dict[str, list[Trained]] = {}
    left_out: list[str] = []
    for seed in range(max(wanted.values())):
        for name in (name for name, seeds in wanted.items() if seed < seeds):
            # seeds outside: a machine that changes its pace does so for all
            try:
                runs.setdefault(name, []).append(bench.run(name, known[name], bench.epochs, seed))
            except TimeIsUp:
                left_out.append(f"{name} with seed {seed}")
    if left_out:
        print(f"--most-minutes left out {', '.join(left_out)}; the same command goes on", file=sys.stderr)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="tiny-imagenet-40.tar")
    parser.add_argument("--work", type=Path, required=True, help="runs and results; a second call goes on in it")
    parser.add_argument("--only", help="names of variants, with commas; B is always there, it sets the target")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--lr", type=float, help="of B, instead of the search")
    parser.add_argument("--width", type=float, default=0.375)
    parser.add_argument("--stem", choices=["standard", "small", "patch"], default="standard")
    parser.add_argument("--usd-per-hour", type=float, default=0.085, help="of a machine with 2 cores")
    parser.add_argument("--ablation", action="store_true", help="each method added to B, and left out of fast")
    parser.add_argument("--ablation-seeds", type=int, default=1)
    parser.add_argument("--most-minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = {"name": "resnet18", "stem": options.stem, "width": options.width}
    work = options.work.resolve()
    bench = Bench(options.data.resolve(), work, options.epochs, model, 60 * options.most_minutes)
    known = variants(1.0)
    ablation = [name for name in known if not name.startswith("fast+")]
    asked = ablation if options.only is None and options.ablation else (options.only or "A,B,fast").split(",")
    if unknown := [name for name in asked if name not in known]:
        parser.error(f"no variant is called {unknown[0]!r}; there are {', '.join(known)}")
    few = {"A", "B", "fast"}  # the others have --ablation-seeds
    wanted = {
        name: options.seeds if name in few or options.only else options.ablation_seeds
        for name in known
        if name in asked or name == "B"
    }
    if "A" in wanted:
        bench.unpack()
    try:
        rate = options.lr or bench.best_rate()
    except TimeIsUp:
        sys.exit("--most-minutes ended the search of the learning rate; the same command goes on")
    runs = {name: made for name, made in make_all(bench, variants(rate), wanted).items() if made}
    if "B" not in runs:
        sys.exit("there was no time for B, which sets the target; the same command goes on")
    target = statistics.mean(each.top1 for each in runs["B"])
    loads = [each.load for mine in runs.values() for each in mine]
    text = f"Learning rate of B: {rate:g}; model: {model}. Load before each run: at most {max(loads):.1f}.\n\n"
    publish("time-to-accuracy", "Time to accuracy", text + table(runs, target, options.usd_per_hour), options.out)
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
