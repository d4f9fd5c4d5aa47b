"""Whole plans beside emulated runs: predicted epoch and limit, then the run, for paces of cards x cores x stores.

An emulated accelerator eats at a card's published pace of ResNet-50; training is pinned to one core or two; data lies in a
folder, or behind an S3 endpoint with added latency or a slow link, whose server and proxy have the other core. Combinations
are drawn from a seed. What the planner knows of this machine is measured once before the first run: seconds of a sample with
one core and with two, and the store's own answer time and rate without added latency. Needs a quiet machine with two cores.

  .venv/bin/python benchmarks/planning/whole_plans.py [--seed 0] [--cases 13] [--seconds 600] [--out FILE.md]
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from rows import SHARED  # noqa: E402

from flatout.commands.planned_data import Costs, Sizes, measure_costs, write_pictures  # noqa: E402
from flatout.config.loading import load_config  # noqa: E402
from flatout.cost.machines import Machine  # noqa: E402
from flatout.diagnosis.model.step import step_seconds  # noqa: E402
from flatout.planning.data_path import STORES, DataFeed, Samples, StoreClass, feed_of  # noqa: E402
from flatout.planning.estimate import LOOP_SECONDS  # noqa: E402
from flatout.tasks.setup import open_task  # noqa: E402
from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402

BATCH, COUNT, IN_FLIGHT, FETCHERS = 32, 1024, 64, 4
PICTURES = Sizes(COUNT, 0, 2, 300_000, 900, 675)
"""Large enough that one core decodes fewer than most cards take."""
WARMING_SECONDS, WATCHED_SECONDS = 3.0, 8.0
NO_TIE = 1.15
"""Device, cores and store are at least so far apart in what is drawn: of a tie nobody could say which limits."""


@dataclass(frozen=True)
class Case:
    card: str
    pace: float
    cores: int
    faults: Faults | None
    """None: a local folder."""

    @property
    def store(self) -> str:
        if self.faults is None:
            return "local folder"
        link = self.faults.bytes_per_second
        return f"S3, {1e3 * self.faults.latency_seconds:.0f} ms" + (f", {link / 1e6:.0f} MB/s" if link else "")


def published_paces(path: Path) -> dict[str, float]:
    """ResNet-50, 16 bits, one card: the fastest row of each."""
    found: dict[str, float] = {}
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["model"] == "resnet50" and row["precision"] == "amp" and row["gpus"] == "1":
            found[row["gpu"]] = max(found.get(row["gpu"], 0.0), float(row["samples_per_second"]))
    return found


def draw(seed: int, number: int, paces: dict[str, float]) -> Case:
    """Half of them local, on one core or two; remote ones train on one, because the server has the other."""
    chance = random.Random(f"{seed} {number}")
    card = chance.choice(sorted(paces))
    if number % 2 == 0:
        return Case(card, paces[card], 1 + number // 2 % 2, None)
    latency = round(0.005 * 100 ** chance.random(), 3)
    link = round(40e6 * 4 ** chance.random(), -6) if number % 4 == 3 else None
    return Case(card, paces[card], 1, Faults(latency_seconds=latency, bytes_per_second=link))


@contextmanager
def pinned(cores: set[int]):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    yield
    os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Here:
    """This machine as a plan finds it."""

    by_cores: dict[int, Costs]
    bytes_each: float
    reading_seconds: float
    """Of a core, to receive one sample."""
    answer_seconds: float
    store_per_second: float


def look_around(data: Path) -> Here:
    cores = sorted(os.sched_getaffinity(0))
    config = load_config({"name": "here"}, settings(str(data), 0.0)).config
    costs = {}
    for count in (1, 2):
        with pinned(set(cores[:count])):
            costs[count] = measure_costs(config, 0.0)
    split = open_task(load_config({"name": "store"}, settings("s3://bucket/photos", 0.0)).config).dataset.train
    with pinned({cores[0]}):
        began = time.monotonic()
        for number in range(32):
            split.read(np.array([number]))
        answer = (time.monotonic() - began) / 32
        batches = np.array_split(np.arange(len(split)), len(split) // BATCH)  # as the loader asks: a few at once
        began, busy = time.monotonic(), time.process_time()
        with ThreadPoolExecutor(FETCHERS) as readers:
            list(readers.map(split.read, batches))
        rate = len(split) / (time.monotonic() - began)
        reading = (time.process_time() - busy) / len(split)
    each = statistics.fmean(path.stat().st_size for path in data.glob("*/*.jpg"))
    print(f"one core {costs[1]}, two {costs[2]}, reading {reading}, answer {answer}, {rate:.0f}/s", flush=True)
    return Here(costs, each, reading, answer, rate)


def settings(path: str, pace: float) -> dict[str, object]:
    return {
        "name": "whole", "device": "emulated", "data.path": path, "data.view": "train-224", "data.eval_view": "eval-224",
        "data.batch_size": BATCH, "data.cache": "off", "data.stage": "off", "train.epochs": 1000,
        "emulated.base_seconds": 0.0, "emulated.seconds_per_sample": 1 / pace if pace else 0.0, "model.width": 0.125,
        "validate.every_epochs": 1000, "checkpoint.every_epochs": 1000,
    }  # fmt: skip


def predicted(case: Case, here: Here) -> tuple[float, str, float]:
    """Samples a second, the limit, and by how much the next one is further away."""
    costs, store = here.by_cores[case.cores], "local"
    alone = [case.pace]
    samples = Samples(COUNT, 0, here.bytes_each, costs.decode, costs.augment, 0.0, "measured here")
    if case.faults is not None:
        store, link = f"s3 {case.store}", case.faults.bytes_per_second or float("inf")
        cap = min(link, here.store_per_second * here.bytes_each)
        latency, receiving = here.answer_seconds + case.faults.latency_seconds, here.reading_seconds / here.bytes_each
        STORES[store] = StoreClass(store, latency, float("inf"), cap, IN_FLIGHT, True, receiving)
        alone.append(min(cap / here.bytes_each, IN_FLIGHT / latency))
    feed = feed_on(case, replace(samples, store=store))
    alone.append(case.cores / (costs.seconds + (here.reading_seconds if case.faults is not None else 0.0)))
    device, loading = BATCH / case.pace, BATCH / feed.per_second.value
    limit = "device" if device >= loading else feed.limit
    slowest, second = sorted(alone)[:2]
    return BATCH / step_seconds(device, 0.0, loading), limit, second / slowest


def feed_on(case: Case, samples: Samples) -> DataFeed:
    memory = psutil.virtual_memory().total / 2**30
    machine = Machine("here", "own", case.card, 1, float(case.cores), memory, None, None, 1000.0, None, "here", "n/a")
    return feed_of(samples, machine, BATCH, 1000, cached=False, host_seconds=LOOP_SECONDS)


def train(case: Case, path: str, folder: Path, steps: int) -> tuple[float, float]:
    """Samples a second once it is warm, and the share of a step that waited for data."""
    (folder / "recipe.yaml").write_text("name: whole\n")
    asked = {**settings(path, case.pace), "train.max_steps": steps}
    command = [sys.executable, "-m", "flatout", "train", "recipe.yaml", "--run", "run", "--fresh", "--json"]
    for key, value in asked.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    with pinned(set(sorted(os.sched_getaffinity(0))[: case.cores])):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    with (folder / "run" / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    start = float(rows[0]["time_unix"]) + WARMING_SECONDS
    warm = [row for row in rows[FETCHERS:] if float(row["time_unix"]) >= start]
    seconds = float(warm[-1]["time_unix"]) - float(warm[0]["time_unix"])
    waited = sum(float(row["data_wait_seconds"]) for row in warm[1:]) / seconds
    return sum(int(row["samples"]) for row in warm[1:]) / seconds, waited


def told_limit(run: Path, waited: float) -> str:
    """`flatout explain` of the run in the planner's words; a run too short for a verdict spent most of it starting."""
    if waited < 0.05:
        return "device"
    command = [sys.executable, "-m", "flatout", "explain", str(run), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    causes = [told["cause"], *(finding["id"] for finding in told["findings"])]
    cause = next((each for each in causes if each.startswith(("data", "compute", "host"))), causes[0])
    return {"compute": "device", "data-fetch": "store"}.get(cause, "decode" if cause.startswith("data") else cause)


def compare(case: Case, here: Here, proxy: FaultProxy, data: Path, folder: Path) -> tuple[float, str, float, str]:
    proxy.set(case.faults or Faults())
    told, limit, _ = predicted(case, here)
    steps = round((WARMING_SECONDS + WATCHED_SECONDS) * told / BATCH)
    rate, waited = train(case, str(data) if case.faults is None else "s3://bucket/photos", folder, steps)
    seen = told_limit(folder / "run", waited)
    print(f"{case}: predicted {told:.0f}/s ({limit}), measured {rate:.0f}/s ({seen}, waited {waited:.0%})", flush=True)
    return told, limit, rate, seen


def write_copies(folder: Path) -> None:
    """A few dozen pictures, and copies of them."""
    write_pictures(folder, PICTURES, 64)
    originals = sorted(folder.glob("*/*.jpg"))
    for number in range(COUNT - len(originals)):
        original = originals[number % len(originals)]
        original.with_name(f"copy{number}.jpg").write_bytes(original.read_bytes())


def run(
    seed: int, count: int, seconds: float, paces: dict[str, float]
) -> list[tuple[Case, tuple[float, str, float, str]]]:
    """No further case is begun after so many seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = work / "s3" / "bucket" / "photos"
        data.mkdir(parents=True)
        write_copies(data)
        with pinned({max(os.sched_getaffinity(0))}):
            server = S3Server(work / "s3", cache_seconds=3600)
            server.__enter__()
            proxy = FaultProxy("127.0.0.1", server.port).__enter__()
        with server_stopped(server, proxy):
            os.environ.update(
                AWS_ENDPOINT_URL=proxy.endpoint, AWS_ACCESS_KEY_ID=server.access_key, AWS_REGION="us-east-1",
                AWS_SECRET_ACCESS_KEY=server.secret_key, AWS_ALLOW_HTTP="true", XDG_CACHE_HOME=str(work / "cache"),
            )  # fmt: skip
            here = look_around(data)
            drawn = (draw(seed, number, paces) for number in range(10 * count))
            clear = [case for case in drawn if predicted(case, here)[2] >= NO_TIE]
            return [
                (case, compare(case, here, proxy, data, work))
                for case in clear[:count]
                if time.monotonic() - began < seconds
            ]


@contextmanager
def server_stopped(server: S3Server, proxy: FaultProxy):
    try:
        yield
    finally:
        proxy.__exit__()
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no further case after these")
    parser.add_argument("--paces", type=Path, default=SHARED / "throughput.csv")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found = run(arguments.seed, arguments.cases, arguments.seconds, published_paces(arguments.paces))
    errors = [abs(rate / told - 1) for _, (told, _, rate, _) in found]
    right = sum(limit == seen for _, (_, limit, _, seen) in found)
    out = [
        "# Whole plans beside emulated runs", "",
        f"`python benchmarks/planning/whole_plans.py --seed {arguments.seed} --cases {arguments.cases}`", "",
        "| pace of | images/s | cores | store | epoch predicted | measured | error | limit predicted | seen |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    out += [
        f"| {case.card} | {case.pace:.0f} | {case.cores} | {case.store} | {COUNT / told:.2f} s | {COUNT / rate:.2f} s | "
        f"{rate / told - 1:+.1%} | {limit} | {seen} |"
        for case, (told, limit, rate, seen) in found
    ]
    out += ["", f"{len(found)} combinations: mean error {statistics.fmean(errors):.1%}, largest {max(errors):.1%}, "]
    out[-1] += f"limit right in {right}. An epoch has {COUNT} pictures. Load average before: {load:.1f}."
    print("\n".join(out))
    if arguments.out:
        arguments.out.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
