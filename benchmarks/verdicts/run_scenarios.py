"""Run every scenario for real and hold `flatout explain`'s verdict against what was injected.

    python benchmarks/verdicts/run_scenarios.py [--dir DIR] [--only WORD ...] [--merge] [--repeat N]

Writes benchmarks/results/<date>-verdicts.md. Each scenario trains for a few seconds in a process of its own.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from scenarios import SCENARIOS, Scenario  # noqa: E402

from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402

FORKS = multiprocessing.get_context("forkserver")
BASE: dict[str, Any] = {
    "name": "scenario", "device": "emulated", "threads": 1, "data.view": "train-64", "data.eval_view": "eval-64",
    "data.batch_size": 64, "data.cache": "off", "data.workers": 1, "model.width": 0.125, "train.epochs": 3,
    "validate.every_epochs": 100, "checkpoint.every_epochs": 100, "train.lr": 0.05, "cost.usd_per_hour": 1.0,
}  # fmt: skip
DEADLINE_SECONDS = 300


def make_datasets(folder: Path) -> None:
    from flatout.data.source.shapes import make_shapes

    sizes = {
        "small": (4, 400, 64, 16),
        "middle": (4, 120, 512, 8),
        "big": (4, 120, 1024, 8),
        "long-val": (4, 120, 64, 1200),
        "mismatched": (4, 100, 32, 40),
        "clean": (4, 100, 32, 40),
        "random": (4, 100, 32, 40),
    }
    for name, (classes, each, side, val) in sizes.items():
        if not (folder / "data" / name).exists():
            for _ in make_shapes(folder / "data" / f"{name}.new", classes, each, side, val):
                pass
            os.replace(folder / "data" / f"{name}.new", folder / "data" / name)
    turn_labels(folder / "data" / "mismatched")
    shuffle_labels(folder / "data" / "random")


def turn_labels(folder: Path) -> None:
    """Each class of val gets the images of the next one, as in story D."""
    if (folder / "turned").exists():
        return
    classes = sorted(each for each in (folder / "val").iterdir() if each.is_dir())
    for each in classes:
        each.rename(each.with_name(f"{each.name}.turning"))
    for each, following in zip(classes, [*classes[1:], classes[0]], strict=True):
        each.with_name(f"{each.name}.turning").rename(following)
    (folder / "turned").touch()


def shuffle_labels(folder: Path) -> None:
    """The training images keep their names and get the class of another one."""
    if (folder / "shuffled").exists():
        return
    images = sorted(path for path in (folder / "train").rglob("*") if path.is_file())
    content = [path.read_bytes() for path in images]
    random.Random(0).shuffle(content)
    for path, its in zip(images, content, strict=True):
        path.write_bytes(its)
    (folder / "shuffled").touch()


def train(scenario: Scenario, path: str, run: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.environ["XDG_CACHE_HOME"] = f"{run}-cache"
    from flatout.commands.train import train_run
    from flatout.errors import FlatoutError

    if scenario.inject is not None:
        scenario.inject()
    settings = {**BASE, "data.path": path, **scenario.settings}
    if settings["data.workers"] == 0 or settings["device"] != "emulated":
        settings = {
            key: value
            for key, value in settings.items()
            if not key.startswith("emulated.") or settings["device"] == "emulated"
        }
    try:
        train_run({"name": "scenario"}, settings, run)
    except FlatoutError as error:
        if not scenario.fails:
            raise
        sys.stderr.write(f"(as expected: {error})\n")


def compute() -> None:
    """Until whoever started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        sum(range(10**6))


def here(scenario: Scenario, path: str, run: Path, environment: dict[str, str]) -> None:
    """In one process, or in one for each rank."""
    places: list[dict[str, str]] = [{}]
    if scenario.ranks > 1:
        import ranks

        places = ranks.places(scenario.ranks)
    processes = [
        FORKS.Process(target=train, args=(scenario, path, str(run), {**environment, **place})) for place in places
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + DEADLINE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def over_link(settings: dict[str, Any], rate: str, run: Path) -> None:
    """One rank on each of two nodes: network namespaces with a link of that speed between them."""
    import yaml

    from namespaces import two_nodes

    recipe = run.with_suffix(".yaml")
    recipe.write_text(yaml.safe_dump({"name": "scenario"}))
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    with two_nodes(rate) as nodes:
        for process in nodes.start("-m", "flatout", "train", recipe, "--run", run, *sets, cwd=run.parent):
            process.wait(DEADLINE_SECONDS)


def play(scenario: Scenario, folder: Path, proxy: FaultProxy, environment: dict[str, str]) -> dict[str, Any]:
    from flatout.commands.explain import explain

    run = folder / "runs" / "".join(letter if letter.isalnum() else "-" for letter in scenario.name)
    shutil.rmtree(run, ignore_errors=True)
    shutil.rmtree(f"{run}-cache", ignore_errors=True)
    path = str(folder / "data" / scenario.data)
    proxy.clear()
    if scenario.faults is not None:
        path = f"s3://data/{scenario.data}"
        proxy.set(scenario.faults)
    neighbours = [FORKS.Process(target=compute, daemon=True) for _ in range(scenario.neighbours)]
    for each in neighbours:
        each.start()
    started = time.monotonic()
    if scenario.link is not None:
        over_link({**BASE, "data.path": path, **scenario.settings}, scenario.link, run)
    else:
        here(scenario, path, run, environment)
    seconds = time.monotonic() - started
    for each in neighbours:
        each.kill()
        each.join()
    proxy.set(Faults())
    shutil.rmtree(f"{run}-cache", ignore_errors=True)
    explained = explain(run)
    right = explained.cause == scenario.cause and scenario.says.lower() in explained.verdict.lower()
    right = right and explained.healthy == (scenario.cause == "compute")
    return {
        "name": scenario.name, "injected": scenario.cause, "named": explained.cause, "right": right,
        "seconds": seconds, "verdict": explained.verdict,
        "findings": [finding.id for finding in explained.findings],
    }  # fmt: skip


def report(rows: list[dict[str, Any]], peers: dict[str, str], path: Path, command: str) -> None:
    right = sum(row["right"] for row in rows)
    lines = [
        f"# Verdicts, {time.strftime('%Y-%m-%d')}", "",
        f"{right} of {len(rows)} verdicts name what was injected. 2 cores, no GPU; `{command}`. "
        f"Load average of the machine at the end: {os.getloadavg()[1]:.1f} (over 5 minutes); with 2 cores, more than about 1 means "
        "that other work went on beside the scenarios.", "",
        "| scenario | injected | named | | run | verdict | TraceML 0.5.0, on a plain script |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        peer = next((peers[name] for name in peers if row["name"].startswith(name)), "-")
        mark = "right" if row["right"] else "**wrong**"
        lines.append(
            f"| {row['name']} | {row['injected']} | {row['named']} | {mark} | {row['seconds']:.0f} s | {row['verdict']} | {peer} |"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-verdicts"))
    arguments.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    arguments.add_argument("--repeat", type=int, default=1)
    arguments.add_argument("--merge", action="store_true", help="keep rows of earlier calls; writes the table of all")
    given = arguments.parse_args()
    FORKS.set_forkserver_preload(["flatout.commands.train", "torch._dynamo", "scenarios"])
    given.dir.mkdir(parents=True, exist_ok=True)
    make_datasets(given.dir)
    kept = given.dir / "rows.json"
    rows = {row["name"]: row for row in json.loads(kept.read_text())} if given.merge and kept.exists() else {}
    with S3Server(given.dir) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        environment = {
            "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }  # fmt: skip
        for scenario in [each for each in SCENARIOS if any(word in each.name for word in given.only)] * given.repeat:
            row = play(scenario, given.dir, proxy, environment)
            rows[row["name"]] = row
            print(
                f"{'right' if row['right'] else 'WRONG'}  {row['seconds']:4.0f} s  {row['name']}: {row['named']} {row['findings']}\n       {row['verdict']}",
                flush=True,
            )
            kept.write_text(json.dumps(list(rows.values()), indent=1))
    order = [each.name for each in SCENARIOS]
    ordered = sorted(rows.values(), key=lambda row: order.index(row["name"]) if row["name"] in order else 99)
    told = given.dir / "traceml.json"
    peers = json.loads(told.read_text()) if told.exists() else {}
    report(
        ordered,
        peers,
        ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-verdicts.md",
        "make bench-verdicts",
    )


if __name__ == "__main__":
    main()
