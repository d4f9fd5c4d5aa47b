"""Whole plans beside emulated runs: predicted epoch and limit, then the run, for paces of cards x cores x stores.

An emulated accelerator eats at a card's published pace; training is pinned to one core or two; data lies in a folder, or
behind an S3 endpoint with added latency whose server and proxy are pinned to the other core. What the planner knows of
this machine is measured first, as `flatout plan` does: seconds of one sample on one core, and the store's rate. Needs a
quiet machine with two cores.

  .venv/bin/python benchmarks/planning/whole_plans.py [--quick] [--out FILE.md]
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402

from flatout.commands.planned_data import Sizes, measure_costs, write_pictures  # noqa: E402
from flatout.config.loading import load_config  # noqa: E402
from flatout.cost.machines import Machine  # noqa: E402
from flatout.diagnosis.model.step import step_seconds  # noqa: E402
from flatout.planning.data_path import STORES, Samples, StoreClass, feed_of  # noqa: E402
from flatout.tasks.setup import open_task  # noqa: E402
from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402

PACES = {"T4": 370.0, "A10G": 741.0, "A100 80GB SXM4": 2470.0}
"""ResNet-50, 16 bits, images a second: estimated, story D's and NVIDIA's."""
LATENCIES = (0.005, 0.04, 0.15)
BATCH, WIDTH, HEIGHT, FILE_BYTES = 64, 1200, 900, 250_000


@dataclass(frozen=True)
class Case:
    card: str
    cores: int
    latency: float | None
    """None: a local folder."""

    @property
    def name(self) -> str:
        store = "local folder" if self.latency is None else f"S3, {1e3 * self.latency:.0f} ms"
        return f"{self.card} | {self.cores} | {store}"


def cases(quick: bool) -> list[Case]:
    """Local on one core and two; remote on one, because the server has the other."""
    local = [Case(card, cores, None) for card in PACES for cores in (1, 2)]
    remote = [Case(card, 1, latency) for latency in LATENCIES for card in PACES]
    return [local[0], remote[1]] if quick else local + remote


def settings(case: Case, path: str, epochs: int) -> dict[str, object]:
    return {
        "name": "whole", "device": "emulated", "data.path": path, "data.view": "train-224", "data.eval_view": "eval-224",
        "data.batch_size": BATCH, "data.workers": case.cores, "data.cache": "off", "data.stage": "off",
        "train.epochs": epochs, "emulated.base_seconds": 0.0, "emulated.seconds_per_sample": 1 / PACES[case.card],
        "model.width": 0.125, "validate.every_epochs": 100, "checkpoint.every_epochs": 100,
        "monitor.interval_seconds": None,
    }  # fmt: skip


def pinned(cores: int) -> set[int]:
    return set(sorted(os.sched_getaffinity(0))[:cores])


def train(case: Case, path: str, folder: Path, environment: dict[str, str], epochs: int) -> tuple[float, float]:
    """Samples a second from the first to the last warm step, and the share of a step that waited for data."""
    recipe = folder / "recipe.yaml"
    recipe.write_text("name: whole\n")
    sets = [
        part for key, value in settings(case, path, epochs).items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    command = [
        sys.executable,
        "-m",
        "flatout",
        "train",
        str(recipe),
        *sets,
        "--run",
        str(folder / "run"),
        "--fresh",
        "--json",
    ]
    chosen = pinned(case.cores)
    subprocess.run(
        command, env=environment, check=True, stdout=subprocess.DEVNULL, cwd=folder,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )  # fmt: skip
    with (folder / "run" / "steps.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["epoch"]) > 0]
    times = [float(row["time_unix"]) for row in rows]
    rate = sum(int(row["samples"]) for row in rows[1:]) / (times[-1] - times[0])
    waited = sum(float(row["data_wait_seconds"]) for row in rows) / sum(float(row["step_seconds"]) for row in rows)
    return rate, waited


def told_cause(run: Path) -> str:
    """The verdict of `flatout explain` on the run, in the planner's words."""
    command = [sys.executable, "-m", "flatout", "explain", str(run), "--json"]
    cause = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["cause"]
    return {"compute": "device", "data-fetch": "store"}.get(cause, "decode" if cause.startswith("data") else cause)


def measured_store(path: str) -> tuple[float, float]:
    """Samples a second that 32 readers get, and the reader's own processor seconds of one."""
    asked = {"data.path": path, "data.view": "train-224", "data.eval_view": "eval-224", "data.batch_size": BATCH}
    config = load_config({"name": "store"}, asked).config
    split = open_task(config).dataset.train
    groups = np.array_split(np.arange(len(split)), max(1, len(split) // 4))
    began, busy = time.monotonic(), time.process_time()
    with ThreadPoolExecutor(32) as readers:
        list(readers.map(split.read, groups))
    return len(split) / (time.monotonic() - began), (time.process_time() - busy) / len(split)


def predicted(case: Case, samples: Samples) -> tuple[float, str]:
    machine = Machine("here", "own", case.card, 1, float(case.cores), None, None, None, 1000.0, None, "here", "n/a")
    feed = feed_of(samples, machine, BATCH, 3, cached=False, host_cores=0.05)
    device, loading = BATCH / PACES[case.card], BATCH / feed.per_second.value
    limit = "device" if device >= loading else feed.limit
    return BATCH / step_seconds(device, 0.0, loading), limit


def samples_for(case: Case, count: int, each: float, costs: object, path: str) -> Samples:
    samples = Samples(count, 0, each, costs.decode, costs.augment, 0.0, "measured here", "disk")
    if case.latency is None:
        return replace(samples, store="nvme")
    rate, reading = measured_store(path)
    name = f"s3 {case.latency}"
    STORES[name] = StoreClass(name, 0.0, float("inf"), rate * each, fetchers=32, remote=True)
    return replace(samples, store=name, decode_seconds=costs.decode + reading)


def run(quick: bool) -> list[tuple[Case, float, str, float, str]]:
    found, count, epochs = [], 640 if quick else 1536, 2 if quick else 3
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = work / "s3" / "bucket" / "photos"
        data.mkdir(parents=True)
        write_copies(data, count)
        each = statistics.fmean(path.stat().st_size for path in data.glob("*/*.jpg"))
        with S3Server(work / "s3", cache_seconds=3600) as server, FaultProxy("127.0.0.1", server.port) as proxy:
            environment = {
                **os.environ, "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_ACCESS_KEY_ID": server.access_key,
                "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
                "XDG_CACHE_HOME": str(work / "cache"), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            os.environ.update(environment)
            local = load_config({"name": "local"}, settings(cases(True)[0], str(data), 1)).config
            costs = measure_costs(local, 0.0)
            everywhere = os.sched_getaffinity(0)
            for case in cases(quick):
                path = str(data) if case.latency is None else "s3://bucket/photos"
                proxy.set(Faults(latency_seconds=case.latency or 0.0))
                os.sched_setaffinity(0, pinned(case.cores))
                told, limit = predicted(case, samples_for(case, count, each, costs, path))
                os.sched_setaffinity(0, everywhere)
                rate, waited = train(case, path, work, environment, epochs)
                seen = "device" if waited < 0.05 else told_cause(work / "run")
                found.append((case, told, limit, rate, seen))
                print(f"{case.name}: predicted {told:.0f}/s ({limit}), measured {rate:.0f}/s ({seen})", flush=True)
    return found


def write_copies(folder: Path, count: int) -> None:
    """A few dozen pictures, and as many links to them as there are samples."""
    write_pictures(folder, Sizes(count, 0, 2, FILE_BYTES, WIDTH, HEIGHT), 64)
    originals = sorted(folder.glob("*/*.jpg"))
    for number in range(count - len(originals)):
        original = originals[number % len(originals)]
        shutil.copyfile(original, original.with_name(f"copy{number}.jpg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two combinations, few samples: does it run at all")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"load average {load:.1f}: the cores are not idle, and what is measured will be slower than planned",
            flush=True,
        )
    found = run(arguments.quick)
    errors = [abs(told / rate - 1) for _, told, _, rate, _ in found]
    right = sum(limit == seen for _, _, limit, _, seen in found)
    out = ["# Whole plans beside emulated runs", "", "`python benchmarks/planning/whole_plans.py`", ""]
    out += [
        "| card | cores | store | predicted/s | limit | measured/s | limit seen | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    out += [
        f"| {case.name} | {told:.0f} | {limit} | {rate:.0f} | {seen} | {told / rate - 1:+.1%} |"
        for case, told, limit, rate, seen in found
    ]
    out += [
        "",
        f"{len(found)} combinations: mean error {statistics.fmean(errors):.1%}, largest {max(errors):.1%}, limit right in {right}.",
    ]
    out += [f"Load average before: {load:.1f}."]
    print("\n".join(out))
    if arguments.out:
        arguments.out.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
