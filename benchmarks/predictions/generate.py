"""Predict, then measure, on pairs that nobody chose: seeds draw base run, change and the quantity that is compared.

    python benchmarks/predictions/generate.py [--seed 1] [--pairs 64] [--dir DIR] [--minutes 24] [--only KIND ...]

Pairs that DIR has already are not measured again: the same command goes on where it was stopped. Runs take a few seconds
each, one after the other. Writes benchmarks/results/<date>-predictions-drawn.md. Kinds that need root (link, mount) are
left out, and named, where they cannot run.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks" / "verdicts"), str(Path(__file__).parent)]

from servers.slow_mount import can_mount, slow_mount  # noqa: E402

DEADLINE_SECONDS = 240
BASE: dict[str, Any] = {
    "device": "emulated", "threads": 1, "data.view": "train-64", "data.eval_view": "eval-64", "data.cache": "off",
    "data.workers": 1, "model.width": 0.125, "train.epochs": 3, "validate.every_epochs": 100, "train.lr": 0.05,
    "checkpoint.every_epochs": 100, "cost.usd_per_hour": 1.0, "data.batch_size": 32,
}  # fmt: skip
REAL = {"device": "cpu", "data.cache": "memory", "train.epochs": 10, "train.max_steps": 40}
DATASETS = {"small": (4, 160, 64, 16), "big": (4, 60, 1024, 8), "photos": (2, 20, 1600, 2)}
"""Classes, samples of each, pixels a side, validation samples of each."""


@dataclass(frozen=True)
class Pair:
    """A base run and a change of it. `what` is the figure that is compared: step or run."""

    kind: str
    data: str
    settings: dict[str, Any]
    changes: dict[str, Any]
    what: str = "step"
    open_seconds: float | None = None
    """Of a mount that the data is read from."""
    rate: str | None = None
    """Of the link between two nodes, as `tc` writes it."""

    @property
    def change_named(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.changes.items())


def emulated(draw: random.Random, low: float = 0.01, high: float = 0.06) -> dict[str, Any]:
    """An accelerator of a random speed."""
    return {
        "emulated.base_seconds": round(draw.uniform(low, high), 4),
        "emulated.seconds_per_sample": round(draw.uniform(0.0002, 0.0015), 5),
    }


def ranks(draw: random.Random) -> Pair:
    settings = {**emulated(draw), "data.batch_size": draw.choice([16, 32]), "train.epochs": 4}
    if draw.random() < 0.3:
        settings = {**REAL, "train.max_steps": 24, "data.cache": "off"}
    one, two = {}, {"parallel.mode": "ddp", "parallel.devices": 2}
    before, ranks_after = draw.choice([(one, 2), (one, 2), (two, 1)])
    return Pair("ranks", "small", {**settings, **before}, {"ranks": ranks_after}, draw.choice(["step", "run"]))


def cache(draw: random.Random) -> Pair:
    data = draw.choice(["big", "photos"])
    settings = {
        **emulated(draw, 0.002, 0.01),
        "data.batch_size": draw.choice([8, 16]),
        "train.epochs": draw.choice([2, 3, 6]),
    }
    if draw.random() < 0.25:
        return Pair("cache", data, {**settings, "data.cache": "memory"}, {"data.cache": "off"}, "run")
    return Pair("cache", data, settings, {"data.cache": "memory"}, "run")


def accumulate(draw: random.Random) -> Pair:
    settings = emulated(draw) if draw.random() < 0.6 else REAL
    return Pair("accumulate", "small", settings, {"train.accumulate": draw.choice([2, 4])})


def checkpointing(draw: random.Random) -> Pair:
    return Pair(
        "checkpointing", "small", {**REAL, "data.batch_size": draw.choice([16, 32])}, {"train.checkpointing": True}
    )


def stage(draw: random.Random) -> Pair:
    settings = {**emulated(draw, 0.005, 0.03), "data.stage": "off", "data.workers": draw.choice([1, 2])}
    return Pair(
        "stage",
        "small",
        settings,
        {"data.stage": "auto"},
        draw.choice(["step", "run"]),
        draw.choice([0.005, 0.01, 0.02]),
    )


def batch(draw: random.Random) -> Pair:
    data, settings = draw.choice([("small", emulated(draw)), ("big", emulated(draw, 0.002, 0.01)), ("small", REAL)])
    return Pair("batch", data, settings, {"data.batch_size": draw.choice([16, 64])})


def workers(draw: random.Random) -> Pair:
    settings = {**emulated(draw, 0.002, 0.02), "data.workers": draw.choice([0, 1, 2])}
    after = draw.choice([each for each in (0, 1, 2) if each != settings["data.workers"]])
    return Pair("workers", "big", settings, {"data.workers": after})


def epochs(draw: random.Random) -> Pair:
    settings = {
        **emulated(draw),
        "train.epochs": draw.choice([2, 3]),
        "validate.every_epochs": 1,
        "checkpoint.every_epochs": 1,
    }
    return Pair("epochs", "small", settings, {"train.epochs": draw.choice([1, 5, 6])}, "run")


def link(draw: random.Random) -> Pair:
    fast, slow = draw.choice(
        [("1 Gbps", "100mbit"), ("300 Mbps", "100mbit"), ("100 Mbps", "300mbit"), ("50 Mbps", "100mbit")]
    )
    settings = {
        **emulated(draw, 0.05, 0.15), "model.width": 0.5, "parallel.mode": "ddp", "parallel.nodes": 2, "cost.count": 2,
        "train.max_steps": 12,
    }  # fmt: skip
    return Pair("link", "small", settings, {"link": fast}, rate=slow)


def speed(draw: random.Random) -> Pair:
    data = draw.choice(["small", "big"])
    return Pair("emulated speed", data, emulated(draw, 0.002, 0.06), emulated(draw, 0.002, 0.08))


KINDS: dict[str, Callable[[random.Random], Pair]] = {
    "ranks": ranks, "cache": cache, "accumulate": accumulate, "checkpointing": checkpointing, "stage": stage,
    "batch": batch, "workers": workers, "epochs": epochs, "link": link, "emulated speed": speed,
}  # fmt: skip


def drawn(seed: int, number: int, kinds: list[str]) -> Pair:
    """Kinds take turns; everything else follows from seed and number alone."""
    return KINDS[kinds[number % len(kinds)]](random.Random(f"{seed}-{number}"))


def make_datasets(folder: Path) -> None:
    from flatout.data.source.shapes import make_shapes

    for name, (classes, each, side, held_out) in DATASETS.items():
        if not (folder / "data" / name).exists():
            for _ in make_shapes(folder / "data" / f"{name}.new", classes, each, side, held_out):
                pass
            os.replace(folder / "data" / f"{name}.new", folder / "data" / name)


def train(pair: Pair, folder: Path, name: str, changes: dict[str, Any]) -> Path:
    """One run in processes of its own, as a user starts it."""
    from run_scenarios import over_link

    run = folder / "runs" / name
    for old in (run, Path(f"{run}-cache")):
        shutil.rmtree(old, ignore_errors=True)
    run.parent.mkdir(parents=True, exist_ok=True)
    world = dict(changes)
    rate = str(world.pop("link", "")).lower().replace(" gbps", "gbit").replace(" mbps", "mbit") or pair.rate
    ranks_wanted = world.pop("ranks", None)
    settings = {**BASE, "data.path": str(folder / "data" / pair.data), **pair.settings, **world}
    if ranks_wanted is not None:
        several = {"parallel.mode": "ddp", "parallel.devices": ranks_wanted}
        settings |= several if ranks_wanted > 1 else {"parallel.mode": "single", "parallel.devices": 1}
    if pair.rate is not None:
        over_link(settings, str(rate), run)
        return run
    with ExitStack() as mounts:
        if pair.open_seconds is not None:
            mount = slow_mount(folder / "data" / pair.data, folder / "mount", pair.open_seconds)
            settings["data.path"] = str(mounts.enter_context(mount))
        _run_recipe(settings, run)
    shutil.rmtree(f"{run}-cache", ignore_errors=True)
    return run


def _run_recipe(settings: dict[str, Any], run: Path) -> None:
    recipe = run.with_suffix(".yaml")
    recipe.write_text("name: pair\n")
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "flatout", "train", str(recipe), "--run", str(run), *sets]
    environment = {**os.environ, "XDG_CACHE_HOME": f"{run}-cache"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{run}: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")


def measured(run: Path, what: str) -> float:
    from flatout.diagnosis.reading import read_signals
    from flatout.runs import read_run

    signals = read_signals(read_run(run))
    return signals.step.seconds if what == "step" else signals.time.wall_seconds


def play(pair: Pair, folder: Path, number: int) -> dict[str, Any]:
    from flatout.commands.predict import predict_changes

    origin = train(pair, folder, f"{number:03}-base", {})
    prediction = predict_changes(origin, [pair.changes])[1]
    follower = train(pair, folder, f"{number:03}-changed", pair.changes)
    row: dict[str, Any] = {"kind": pair.kind, "data": pair.data, "change": pair.change_named, "what": pair.what}
    for what in ("step", "run"):
        interval, truth = getattr(prediction, what), measured(follower, what)
        row[what] = {
            "was": measured(origin, what), "predicted": interval.value, "low": interval.low, "high": interval.high,
            "measured": truth, "error": interval.value / truth - 1, "inside": interval.low <= truth <= interval.high,
        }  # fmt: skip
    return {**row, "limit": prediction.limit, "load": os.getloadavg()[0]}


def report(rows: list[dict[str, Any]], seed: int, left_out: list[str], path: Path) -> None:
    chosen = [row[row["what"]] for row in rows]
    errors, inside = [abs(each["error"]) for each in chosen], sum(each["inside"] for each in chosen)
    load = sum(row["load"] for row in rows) / len(rows)
    lines = [
        f"# Predictions of pairs that were drawn, {time.strftime('%Y-%m-%d')}", "",
        f"{len(rows)} pairs, seed {seed}: mean absolute error {100 * sum(errors) / len(rows):.1f} %, "
        f"{inside} of {len(rows)} ({100 * inside / len(rows):.0f} %) inside an interval that is meant to hold 80 %, "
        f"worst error {100 * max(errors):.0f} %, {sum(each > 0.3 for each in errors)} above 30 %.", "",
        f"`python benchmarks/predictions/generate.py --seed {seed}`; 2 cores, no GPU. Mean load of the machine while "
        f"the pairs were measured: {load:.1f}" + (": **not idle**, the figures are no claim." if load > 2 else "."),
        *([f"Left out, since they need root: {', '.join(left_out)}."] if left_out else []), "",
        "| kind | pairs | mean error | inside | worst |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in rows):
        some = [row[row["what"]] for row in rows if row["kind"] == kind]
        off = [abs(each["error"]) for each in some]
        lines.append(
            f"| {kind} | {len(some)} | {100 * sum(off) / len(off):.1f} % | {sum(e['inside'] for e in some)} | {100 * max(off):.0f} % |"
        )
    lines += [
        "",
        "Worst first; seconds.",
        "",
        "| # | kind | change | of | was | predicted | interval | measured | error | inside |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: -abs(row[row["what"]]["error"])):
        each = row[row["what"]]
        lines.append(
            f"| {row['number']} | {row['kind']} ({row['data']}) | {row['change']} | {row['what']} | {each['was']:.3f} | {each['predicted']:.3f} | "
            f"{each['low']:.3f} to {each['high']:.3f} | {each['measured']:.3f} | {100 * each['error']:+.1f} % | {'yes' if each['inside'] else 'no'} |"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--pairs", type=int, default=64)
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-drawn-pairs"))
    arguments.add_argument("--minutes", type=float, default=24.0, help="no pair is begun after so many")
    arguments.add_argument("--only", nargs="*", default=[], choices=list(KINDS), metavar="KIND")
    arguments.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-predictions-drawn.md",
    )
    given = arguments.parse_args()
    began, folder = time.monotonic(), given.dir.resolve() / f"seed{given.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    make_datasets(folder)
    left_out = [] if can_mount() else ["link", "stage"]
    kinds, kept = [each for each in KINDS if each not in left_out], folder / "pairs.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for number in range(given.pairs):
        pair = drawn(given.seed, number, kinds)
        if any(row["number"] == number for row in rows) or (given.only and pair.kind not in given.only):
            continue
        if time.monotonic() - began > 60 * given.minutes:
            print(f"{given.minutes:g} minutes are over; the same command goes on with pair {number}", flush=True)
            break
        row = {"number": number, **play(pair, folder, number)}
        rows.append(row)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        each = row[pair.what]
        print(
            f"{number} {pair.kind} | {pair.change_named} | {pair.what}: was {each['was']:.3f}, predicted {each['predicted']:.3f} "
            f"[{each['low']:.3f}, {each['high']:.3f}], measured {each['measured']:.3f}: {100 * each['error']:+.1f} % "
            f"{'' if each['inside'] else 'OUTSIDE'}", flush=True,
        )  # fmt: skip
    if rows:
        report(rows, given.seed, left_out, given.out)


if __name__ == "__main__":
    main()
