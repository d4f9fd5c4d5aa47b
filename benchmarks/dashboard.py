"""The dashboard at a thousand runs and a million steps, and what being watched costs a run.

python benchmarks/dashboard.py RUN --out benchmarks/results      RUN: any finished run directory, which is copied
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from dated_results import publish

COMMAND = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
STEP = "1,{n},{epoch},{index},256,356fd14afc5119fe,{loss},0.1,0.1234567890123,0.00123456789,{time},0.0123456789\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipe", type=Path, help="A recipe that trains for some seconds: bare against watched.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "runs"
        for number in range(args.runs):
            copy_small(args.run, folder / f"run-{number:04}")
        make_long(args.run, folder / "long", args.steps)
        lines = list(measure(folder, args))
        if args.recipe is not None:
            lines += watched_training(args.recipe, Path(scratch), args.rounds)
    text = "\n".join(["| what | measured |", "|---|---|", *lines]) + "\n"
    publish("dashboard", "The dashboard", text, args.out)


def copy_small(run: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in ("config.yaml", "summary.json", "env.json", "steps.csv", "epochs.csv", "log.txt"):
        shutil.copy2(run / name, target / name)


def make_long(run: Path, target: Path, steps: int) -> None:
    copy_small(run, target)
    header = (run / "steps.csv").read_text().splitlines()[0].split(",")[:12]
    with (target / "steps.csv").open("w", newline="") as file:
        file.write(",".join(header) + "\r\n")
        for n in range(1, steps + 1):
            file.write(
                STEP.format(n=n, epoch=n // 10_000, index=n % 10_000, loss=2 / n**0.1 + (n % 7) / 100, time=1.7e9 + n)
            )


def measure(folder: Path, args: argparse.Namespace) -> list[str]:
    started = time.perf_counter()
    server = subprocess.Popen([*COMMAND, "dashboard", str(folder), "--port=0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r"(http://\S+)/\?token", server.stdout.readline())
        assert found
        address = found.group(1)
        listening = time.perf_counter() - started
        page, rows, first = timed(address, "/"), timed(address, "/api/runs"), time.perf_counter() - started
        again = [timed(address, "/api/runs") for _ in range(20)]
        opened = first_event(address, "/events/run/0/long")
        memory = psutil.Process(server.pid).memory_info().rss / 1e6
    finally:
        server.terminate()
        server.wait()
    return [
        f"| {args.runs:,} runs: listening after the start | {listening:.2f} s |",
        f"| page, then the first list | {page * 1e3:.0f} ms, {rows * 1e3:.0f} ms ({first:.2f} s after the start) |",
        f"| the list again, median and worst of 20 | {statistics.median(again) * 1e3:.0f} ms, {max(again) * 1e3:.0f} ms |",
        f"| a run of {args.steps:,} steps: its first curves | {opened:.2f} s |",
        f"| memory of the server (RSS) | {memory:.0f} MB |",
    ]


def timed(address: str, path: str) -> float:
    started = time.perf_counter()
    with urllib.request.urlopen(address + path) as answer:
        answer.read()
    return time.perf_counter() - started


def first_event(address: str, path: str) -> float:
    """Until the curves of a run have come."""
    started = time.perf_counter()
    with urllib.request.urlopen(address + path) as answer:
        for line in answer:
            if line.startswith(b"data: ") and "curves" in json.loads(line[6:])["fragments"]:
                return time.perf_counter() - started
    raise SystemExit("the stream ended without curves")


def watched_training(recipe: Path, scratch: Path, rounds: int) -> list[str]:
    """Wall clock of a whole run, bare and with a page that follows it, in turns."""
    seconds: dict[str, list[float]] = {"bare": [], "watched": []}
    for number in range(rounds):
        for how in ("bare", "watched"):
            run = scratch / f"trained-{how}-{number}" / "run"
            server = None
            if how == "watched":
                run.parent.mkdir()
                server = follow(run.parent)
            started = time.perf_counter()
            subprocess.run(
                [*COMMAND, "train", str(recipe), "--run", str(run), "--json"], check=True, capture_output=True
            )
            seconds[how].append(time.perf_counter() - started)
            if server is not None:
                server.terminate()
                server.wait()
    ratios = [watched / bare for bare, watched in zip(seconds["bare"], seconds["watched"], strict=True)]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return [
        f"| a watched run over a bare one, wall clock | {statistics.median(ratios):.3f} ({spread}, {rounds} rounds) |"
    ]


def follow(folder: Path) -> "subprocess.Popen[str]":
    """A dashboard and a reader of its stream of the run, as a browser would be."""
    code = (
        "import re, subprocess, sys, time, urllib.request\n"
        "server = subprocess.Popen([sys.executable, '-c', 'from flatout.cli.main import run; run()', 'dashboard', "
        f"{str(folder)!r}, '--port=0'], stdout=subprocess.PIPE, text=True)\n"
        "import signal; signal.signal(signal.SIGTERM, lambda *_: (server.terminate(), sys.exit()))\n"
        "address = re.search(r'(http://\\S+)/\\?token', server.stdout.readline()).group(1)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    try:\n"
        "        for line in urllib.request.urlopen(address + '/events/run/0/run'): pass\n"
        "    except OSError: time.sleep(0.5)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


if __name__ == "__main__":
    main()
