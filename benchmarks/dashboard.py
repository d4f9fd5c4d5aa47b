"""The dashboard at a thousand runs and a million steps, in a real browser, and what being watched costs a run.

python benchmarks/dashboard.py RUN --recipe RECIPE --out benchmarks/results      RUN: any finished run, which is copied
"""

import argparse
import csv
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from playwright.sync_api import Page, sync_playwright

from dated_results import publish

COMMAND = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
_FIRST_LOOKS_SECONDS = 25.0  # the first look reads all there is, the second explains it: once in twenty minutes
_SETTLE_SECONDS = 2.0  # left out of every slice: what fell due while the dashboard was stopped is done at once
HURRIED = """from flatout.commands import dashboard, dashboard_run
from flatout.web import streams
dashboard._IDLE_FACTOR /= {0}
for each, name in (streams, "_MOST_PAUSE_SECONDS"), (streams, "_PUSH_SECONDS"), (dashboard_run, "_MOST_PAUSE_SECONDS"), (dashboard_run, "_TICK_SECONDS"):
    setattr(each, name, getattr(each, name) / {0})
from flatout.cli.main import run; run()"""
STEP = "1,{n},{epoch},{index},256,356fd14afc5119fe,{loss},0.1,0.1234567890123,0.00123456789,{time},0.0123456789\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--starts", type=int, default=5, help="Of the server, each with a page of its own.")
    parser.add_argument(
        "--recipe", type=Path, action="append", default=[], help="What trains, watched and not, in turns."
    )
    parser.add_argument("--watched-only", action="store_true", help="Leave the pages out; a result of its own.")
    parser.add_argument("--slices", type=int, default=24, help="Of the watched run, half of them watched.")
    parser.add_argument("--slice-seconds", type=float, default=12.0)
    parser.add_argument(
        "--often", type=int, action="append", default=[], help="Look so many times as often as a user's dashboard does."
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        lines = [] if args.watched_only else list(measure(Path(scratch) / "runs", args))
        for recipe in args.recipe:
            for often in args.often or [1]:
                lines += watched_training(recipe, args, Path(scratch) / f"{recipe.stem}-{often}" / "run", often)
    text = "\n".join(["| what | measured |", "|---|---|", *lines]) + "\n"
    publish(f"dashboard{'-watched' if args.watched_only else ''}", "The dashboard", text, args.out)


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


def measure(folder: Path, args: argparse.Namespace) -> Iterator[str]:
    for number in range(args.runs):
        copy_small(args.run, folder / f"run-{number:04}")
    make_long(args.run, folder / "long", args.steps)
    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        starts = [first_paint(browser.new_page(), folder) for _ in range(args.starts)]
        listening, painted, complete = zip(*starts, strict=True)
        yield f"| {args.runs:,} runs: listening after the start, median and worst of {args.starts} | {spread(listening)} |"
        yield f"| first rows painted in a browser, after the start | {spread(painted)} |"
        yield f"| all rows there, after the start | {spread(complete)} |"
        with Server(folder) as server:
            again = [timed(server.address, "/api/runs") for _ in range(20)]
            yield f"| the whole list asked for again, median and worst of 20 | {spread(again[1:])} |"
            page = browser.new_page()
            page.goto(server.address)
            all_rows(page, args.runs + 1)
            redrawn = [redraw(page, folder, number) for number in range(10)]
            yield f"| the page's own redrawing when a run changed, of 10 | {spread(redrawn)} |"
            opened = open_long(page, server.address)
            yield f"| a run of {args.steps:,} steps: its curves painted after the click | {opened:.2f} s |"
            page.wait_for_timeout(20_000)  # until all of its steps were read
            yield f"| memory of the server after all that (RSS) | {server.rss_megabytes():.0f} MB |"
        browser.close()


class Server:
    """A dashboard as a user starts it, or one that looks more often."""

    def __init__(self, folder: Path, often: int = 1) -> None:
        self.started = time.perf_counter()
        code = COMMAND if often == 1 else [sys.executable, "-c", HURRIED.format(often)]
        command = [*code, "dashboard", str(folder), "--port=0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"(http://\S+)/\?token", self.process.stdout.readline())
        assert found
        self.address = found.group(1)
        self.listening = time.perf_counter() - self.started

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()

    def rss_megabytes(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss / 1e6)

    def cpu_seconds(self) -> float:
        used = psutil.Process(self.process.pid).cpu_times()
        return float(used.user + used.system)


def first_paint(page: Page, folder: Path) -> tuple[float, float, float]:
    """Listening, first rows on the screen, all rows there: seconds after the start of the server."""
    with Server(folder) as server:
        page.goto(server.address)
        page.wait_for_selector("#runs tbody tr")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        painted = time.perf_counter() - server.started
        all_rows(page, len(list(folder.iterdir())))
        complete = time.perf_counter() - server.started
        page.close()
    return server.listening, painted, complete


def all_rows(page: Page, count: int) -> None:
    while not page.evaluate("document.getElementById('count').textContent").startswith(f"{count:,} of {count:,} runs"):
        time.sleep(0.005)


def redraw(page: Page, folder: Path, number: int) -> float:
    """What the script and the layout of the page take when one row changed, seconds."""
    page.evaluate("""() => {
      const inner = draw;
      window.took = null;
      draw = () => { const t = performance.now(); inner(); document.body.offsetHeight; window.took = performance.now() - t; draw = inner; };
    }""")
    summary = folder / f"run-{number:04}" / "summary.json"
    summary.write_text(summary.read_text() + " ")
    values = json.loads(summary.read_text())
    summary.write_text(json.dumps({**values, "cause": f"changed {number}", "status": "stopped"}))
    while (took := page.evaluate("window.took")) is None:
        time.sleep(0.01)
    return float(took) / 1e3


def open_long(page: Page, address: str) -> float:
    started = time.perf_counter()
    page.goto(f"{address}/run/0/long")
    page.wait_for_selector("#f-curves figure .curve")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return time.perf_counter() - started


def timed(address: str, path: str) -> float:
    started = time.perf_counter()
    with urllib.request.urlopen(address + path) as answer:
        answer.read()
    return time.perf_counter() - started


def spread(seconds: Any) -> str:
    write = (lambda value: f"{value:.2f} s") if max(seconds) >= 0.2 else (lambda value: f"{1e3 * value:.0f} ms")
    return f"{write(statistics.median(seconds))}, {write(max(seconds))}"


def watched_training(recipe: Path, args: argparse.Namespace, run: Path, often: int) -> list[str]:
    """One run on all cores. A dashboard and a reader of its stream are let go on and stopped in turns of some seconds;
    steps per second of neighbouring slices are compared, so that a machine whose speed drifts does not decide. A
    dashboard that looks ten times as often costs ten times as much: a tenth of that, with a tenth of its error, tells
    what the noise of a training hides otherwise. Its own CPU time says whether it did."""
    run.parent.mkdir(parents=True)
    never = [f"--set={key}=100000" for key in ("train.epochs", "validate.every_epochs", "checkpoint.every_epochs")]
    command = [*COMMAND, "train", str(recipe.resolve()), "--run", str(run), "--json", *never]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (run / "steps.csv").exists() or (run / "steps.csv").read_bytes().count(b"\n") < 50:
            time.sleep(0.2)
        with Server(run.parent, often) as server:
            threading.Thread(target=read_stream, args=(f"{server.address}/events/run/0/run",), daemon=True).start()
            time.sleep(_FIRST_LOOKS_SECONDS)
            slices, used = turns(server, args.slices, args.slice_seconds)
    finally:
        training.terminate()
        training.wait()
    rates = slice_rates(run / "steps.csv", slices)
    share = used / sum(end - begin for begin, end in slices[::2])
    ratios = [rates[n] / rates[n + 1] if n % 2 == 0 else rates[n + 1] / rates[n] for n in range(len(rates) - 1)]
    median = statistics.median(
        ratios
    )  # a slice in which the machine did something else counts as one, not by how slow it was
    error = 1.25 * 1.48 * statistics.median(abs(ratio - median) for ratio in ratios) / len(rates[::2]) ** 0.5
    sys.stderr.write(f"{recipe.stem}: steps/s by slice {' '.join(f'{rate:.2f}' for rate in rates)}\n")
    name = recipe.stem if often == 1 else f"{recipe.stem}, looked at {often} times as often"
    lines = [
        f"| {name}: steps/s while watched over not watched, {args.slices} slices of {args.slice_seconds:g} s in turns "
        f"| median {median:.4f} (standard error {error:.4f}) |",
        f"| {name}: CPU of the dashboard in the watched slices | {100 * share:.2f} % of one core |",
    ]
    told = f"| {recipe.stem}: one {often}th of that loss | {1 - (1 - median) / often:.4f} ({error / often:.4f}) |"
    return lines if often == 1 else [*lines, told]


def turns(server: Server, slices: int, seconds: float) -> tuple[list[tuple[float, float]], float]:
    """Begin and end of every slice, of which the first is watched, and the dashboard's CPU seconds within them."""
    counted, used = [], 0.0
    for number in range(slices):
        server.process.send_signal(signal.SIGSTOP if number % 2 else signal.SIGCONT)
        time.sleep(_SETTLE_SECONDS)
        begin, used = time.time(), used - server.cpu_seconds()
        time.sleep(seconds - _SETTLE_SECONDS)
        counted.append((begin, time.time()))
        used += server.cpu_seconds()
    server.process.send_signal(signal.SIGCONT)
    return counted, used


def slice_rates(steps: Path, slices: list[tuple[float, float]]) -> list[float]:
    """Steps per second of every slice; a step that crosses an edge counts on both sides by its share."""
    with steps.open(newline="") as file:
        times = np.array([float(row["time_unix"]) for row in csv.DictReader(file)])
    edges = np.array(slices)
    done = np.interp(edges, times, np.arange(len(times)))
    return [float(each) for each in np.diff(done)[:, 0] / np.diff(edges)[:, 0]]


def read_stream(address: str) -> None:
    """As a browser elsewhere would."""
    try:
        for _ in urllib.request.urlopen(address):
            pass
    except OSError:
        pass


if __name__ == "__main__":
    main()
