"""Predict, then measure: each pair is a base run, a change, what the model says of it, and a run with that change.

    python benchmarks/predictions/run.py [--dir DIR] [--only WORD ...] [--merge]

Writes benchmarks/results/<date>-predictions.md. Base and changed runs take a few seconds each, one after the other.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks" / "verdicts"), str(Path(__file__).parent)]

from run_scenarios import BASE, make_datasets, over_link  # noqa: E402

from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402

FORKS = multiprocessing.get_context("forkserver")
DEADLINE_SECONDS = 300


@dataclass(frozen=True)
class Base:
    name: str
    data: str
    settings: dict[str, Any]
    latency: float | None = None
    """Of a store; the dataset is then read from S3."""
    rate: str | None = None
    """Of a link between two nodes (network namespaces), as `tc` writes it."""
    changes: tuple[tuple[str, dict[str, Any]], ...] = field(default=())
    """Quantity that is compared (step, epoch or run), and the change."""


EMULATED = {"emulated.base_seconds": 0.02, "emulated.seconds_per_sample": 0.001, "data.batch_size": 32}
REAL = {
    "device": "cpu",
    "threads": 1,
    "data.batch_size": 32,
    "train.max_steps": 40,
    "data.cache": "memory",
    "train.epochs": 10,
}
BASES = (
    Base("emulated, loading-bound", "big", {**EMULATED, "train.epochs": 4, "emulated.base_seconds": 0.005, "emulated.seconds_per_sample": 0.0002}, changes=(
        ("step", {"data.workers": 2}),
        ("step", {"data.workers": 0}),
        ("step", {"data.batch_size": 16}),
        ("step", {"data.batch_size": 64}),
        ("step", {"data.workers": 2, "data.batch_size": 64}),
        ("step", {"emulated.seconds_per_sample": 0.004}),
    )),
    Base("emulated, in the training thread", "big", {**EMULATED, "data.workers": 0, "train.epochs": 3}, changes=(
        ("step", {"data.workers": 1}),
        ("step", {"data.workers": 2}),
        ("step", {"data.batch_size": 64}),
        ("step", {"emulated.base_seconds": 0.1}),
    )),
    Base("emulated, compute-bound", "small", {**EMULATED, "train.epochs": 2, "checkpoint.every_steps": 25, "validate.every_epochs": 1}, changes=(
        ("step", {"data.batch_size": 64}),
        ("step", {"data.batch_size": 128}),
        ("step", {"train.accumulate": 4}),
        ("step", {"data.workers": 2}),
        ("run", {"train.epochs": 4}),
        ("run", {"checkpoint.every_steps": 5}),
        ("run", {"emulated.base_seconds": 0.05, "train.epochs": 1}),
    )),
    Base("real CPU", "small", REAL, changes=(
        ("step", {"data.batch_size": 64}),
        ("step", {"data.batch_size": 16}),
        ("step", {"train.accumulate": 2}),
        ("step", {"train.checkpointing": True}),
        ("step", {"data.workers": 2}),
    )),
    Base("real CPU, in the training thread", "big", {**REAL, "data.workers": 0, "data.cache": "off"}, changes=(
        ("step", {"data.workers": 1}),
        ("step", {"data.batch_size": 64}),
    )),
    Base("store, 40 ms", "small", {**EMULATED, "emulated.base_seconds": 0.002, "emulated.seconds_per_sample": 0.0001, "data.stage": "off", "train.epochs": 3}, latency=0.04, changes=(
        ("step", {"storage.latency": "80 ms"}),
        ("step", {"storage.latency": "160 ms"}),
        ("step", {"data.stage": "auto"}),
        ("step", {"data.batch_size": 64}),
        ("step", {"emulated.base_seconds": 0.3}),
        ("step", {"data.cache": "memory"}),
    )),
    Base("store, 120 ms", "small", {**EMULATED, "emulated.base_seconds": 0.01, "emulated.seconds_per_sample": 0.0003, "data.stage": "off", "train.epochs": 3}, latency=0.12, changes=(
        ("step", {"storage.latency": "60 ms"}),
        ("step", {"storage.latency": "240 ms"}),
        ("step", {"data.stage": "auto"}),
        ("step", {"data.batch_size": 64}),
        ("step", {"emulated.base_seconds": 0.3}),
        ("step", {"data.cache": "memory"}),
    )),
    Base("two nodes, 100 Mb/s", "small", {"emulated.base_seconds": 0.1, "emulated.seconds_per_sample": 0.002, "data.batch_size": 32, "model.width": 0.5, "parallel.mode": "ddp", "parallel.nodes": 2, "cost.count": 2, "train.max_steps": 12}, rate="100mbit", changes=(
        ("step", {"link": "1 Gbps"}),
        ("step", {"link": "300 Mbps"}),
        ("step", {"link": "50 Mbps"}),
        ("step", {"data.batch_size": 128}),
        ("step", {"emulated.base_seconds": 0.6}),
        ("step", {"link": "1 Gbps", "data.batch_size": 64}),
    )),
)  # fmt: skip


def train(settings: dict[str, Any], run: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.environ["XDG_CACHE_HOME"] = f"{run}-cache"
    from flatout.commands.train import train_run

    train_run({"name": "pair"}, settings, run)


class Lab:
    """Runs recipes in processes of their own, against a store with a given latency."""

    def __init__(self, folder: Path, proxy: FaultProxy, environment: dict[str, str]) -> None:
        self.folder = folder
        self.proxy = proxy
        self.environment = environment

    def train(self, name: str, base: Base, changes: dict[str, Any]) -> Path:
        run = self.folder / "runs" / "".join(letter if letter.isalnum() else "-" for letter in name)
        for old in (run, Path(f"{run}-cache")):
            shutil.rmtree(old, ignore_errors=True)
        world = dict(changes)
        latency = float(str(world.pop("storage.latency", f"{1000 * (base.latency or 0)} ms")).split()[0]) / 1000
        link = str(world.pop("link", "")).lower()
        world_rate = link.replace(" gbps", "gbit").replace(" mbps", "mbit")
        path = str(self.folder / "data" / base.data) if base.latency is None else f"s3://data/{base.data}"
        self.proxy.set(Faults(latency_seconds=latency))
        settings = {**BASE, "data.path": path, **base.settings, **world}
        if settings["data.workers"] == 0:
            settings.pop("data.prefetch", None)
        if base.rate is not None:
            over_link(settings, world_rate or base.rate, run)
            return run
        process = FORKS.Process(target=train, args=(settings, str(run), self.environment))
        process.start()
        process.join(DEADLINE_SECONDS)
        process.kill()
        process.join()
        shutil.rmtree(f"{run}-cache", ignore_errors=True)
        return run


def measured(run: Path, what: str) -> float:
    from flatout.diagnosis.reading import read_signals
    from flatout.runs import read_run

    signals = read_signals(read_run(run))
    return signals.step.seconds if what == "step" else signals.time.wall_seconds


def play(lab: Lab, base: Base, again: bool) -> list[dict[str, Any]]:
    from flatout.commands.predict import predict_changes

    origin = lab.train(f"{base.name} base", base, {})
    rows = []
    for number, (what, changes) in enumerate(base.changes):
        if again and number:
            origin = lab.train(f"{base.name} base", base, {})
        prediction = predict_changes(origin, [changes])[1]
        interval = getattr(prediction, what)
        named = ", ".join(f"{key}={value}" for key, value in changes.items())
        truth = measured(lab.train(f"{base.name} {named}", base, changes), what)
        row = {
            "base": base.name, "change": named, "what": what, "predicted": interval.value, "low": interval.low,
            "high": interval.high, "measured": truth, "error": interval.value / truth - 1,
            "inside": interval.low <= truth <= interval.high, "as_it_was": measured(origin, what),
        }  # fmt: skip
        print(
            f"{base.name} | {named} | {what}: was {row['as_it_was']:.4f}, predicted {interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}], measured {truth:.4f}: {100 * row['error']:+.1f} % {'' if row['inside'] else 'OUTSIDE'}",
            flush=True,
        )
        rows.append(row)
    return rows


def summed(rows: list[dict[str, Any]], across: bool) -> str:
    """One node, or across the capped link."""
    links = {base.name for base in BASES if base.rate is not None}
    chosen = [row for row in rows if (row["base"] in links) == across]
    if not chosen:
        return ""
    error, inside = sum(abs(row["error"]) for row in chosen) / len(chosen), sum(row["inside"] for row in chosen)
    where = "across the capped link" if across else "on one node"
    return (
        f"{len(chosen)} pairs {where}: mean absolute error {100 * error:.1f} %, {inside} of {len(chosen)} "
        f"({100 * inside / len(chosen):.0f} %) inside the stated interval."
    )


def report(rows: list[dict[str, Any]], path: Path) -> None:
    lines = [
        f"# Predictions, {time.strftime('%Y-%m-%d')}", "",
        " ".join(summed(rows, across) for across in (False, True)), "", "2 cores, no GPU; `make bench-predictions`. "
        f"Load average of the machine at the end: {os.getloadavg()[1]:.1f} (over 5 minutes); above about 1, other work went on beside.", "",
        "Each row: `flatout predict BASE --if CHANGE`, then `flatout train` with that change. Seconds.", "",
        "| base | change | of | was | predicted | interval | measured | error | inside |", "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row['base']} | {row['change']} | {row['what']} | {row['as_it_was']:.3f} | {row['predicted']:.3f} | "
        f"{row['low']:.3f} to {row['high']:.3f} | {row['measured']:.3f} | {100 * row['error']:+.1f} % | {'yes' if row['inside'] else 'no'} |"
        for row in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-verdicts"))
    arguments.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    arguments.add_argument("--merge", action="store_true", help="keep rows of earlier calls; writes the table of all")
    arguments.add_argument(
        "--again", action="store_true", help="measure the base anew for each pair: on a busy machine"
    )
    given = arguments.parse_args()
    FORKS.set_forkserver_preload(["flatout.commands.train", "torch._dynamo"])
    given.dir.mkdir(parents=True, exist_ok=True)
    make_datasets(given.dir)
    kept = given.dir / "pairs.json"
    rows = (
        {(row["base"], row["change"]): row for row in json.loads(kept.read_text())}
        if given.merge and kept.exists()
        else {}
    )
    with S3Server(given.dir) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        environment = {
            "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }  # fmt: skip
        for base in [each for each in BASES if any(word in each.name for word in given.only)]:
            for row in play(Lab(given.dir, proxy, environment), base, given.again):
                rows[row["base"], row["change"]] = row
            kept.write_text(json.dumps(list(rows.values()), indent=1))
    report(list(rows.values()), ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-predictions.md")


if __name__ == "__main__":
    main()
