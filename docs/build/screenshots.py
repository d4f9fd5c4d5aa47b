"""Makes the pictures of README and site from runs of today's code, so that none is ever old: `make screenshots`.

Trains a few small runs (some minutes on two cores), opens reports and dashboard in headless Chromium, and writes docs/images.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
FLATOUT = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
RECIPE = """
name: shapes
data: {path: data, batch_size: 64, view: train-64, eval_view: eval-64}
model: {name: resnet18, width: 0.25}
train: {epochs: 6, lr: 0.1}
cost: {instance: g5.xlarge}
"""
SUITE = """
name: batches
recipe: shapes.yaml
set: {train.epochs: 2, device: emulated}
variants:
  - {name: small batches, set: {data.batch_size: 32}}
  - {name: large batches, set: {data.batch_size: 128}, comment: twice the learning rate would be fair}
"""
STARVED = [
    "device=emulated",
    "data.workers=0",
    "data.cache=off",
    "emulated.base_seconds=0.001",
    "emulated.seconds_per_sample=0.00002",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="Names of pictures (default all).")
    parser.add_argument("--keep", type=Path, help="Work here and use what is there already (default a new folder).")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        work = (args.keep or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        make_runs(work)
        with going(work), served(work / "runs") as address, browser() as opened:
            for name, take in PICTURES.items():
                if not args.only or name in args.only:
                    take(opened, address, work, IMAGES / f"{name}.png")
                    sys.stderr.write(f"{IMAGES / name}.png\n")


def flatout(work: Path, *words: str) -> None:
    subprocess.run([*FLATOUT, *words], cwd=work, check=True, stdout=subprocess.DEVNULL)


def make_runs(work: Path) -> None:
    if (work / "compare.html").exists():
        return
    (work / "shapes.yaml").write_text(RECIPE)
    (work / "suite.yaml").write_text(SUITE)
    flatout(work, "data", "make", "shapes", "data", "--classes", "8", "--samples-per-class", "150", "--size", "64")
    for rate in ("0.05", "0.1", "0.4"):
        flatout(work, "train", "shapes.yaml", "--run", f"runs/lr-{rate}", "--set", f"train.lr={rate}", "--json")
    starved = [word for each in STARVED for word in ("--set", each)]
    flatout(work, "train", "shapes.yaml", "--run", "runs/no-workers", *starved, "--json")
    flatout(work, "suite", "suite.yaml", "--json")
    flatout(work, "report", "runs/lr-0.1", "--json")
    flatout(work, "lr-find", "shapes.yaml", "--json")
    flatout(work, "compare", *(f"runs/lr-{rate}" for rate in ("0.05", "0.1", "0.4")), "--html", "compare.html")


@contextmanager
def going(work: Path) -> Iterator[None]:
    """A run that goes on while pictures are taken."""
    shutil.rmtree(work / "runs/now", ignore_errors=True)
    words = [
        "train",
        "shapes.yaml",
        "--run",
        "runs/now",
        "--set",
        "train.epochs=60",
        "--set",
        "stop.max_usd=1",
        "--json",
    ]
    training = subprocess.Popen([*FLATOUT, *words], cwd=work, stdout=subprocess.DEVNULL)
    try:
        steps = work / "runs/now/steps.csv"
        while not steps.exists() or steps.read_bytes().count(b"\n") < 60:
            if training.poll() is not None:
                raise SystemExit("the run that was to be watched ended")
            time.sleep(0.5)
        yield
    finally:
        training.terminate()
        training.wait()


@contextmanager
def served(runs: Path) -> Iterator[str]:
    server = subprocess.Popen([*FLATOUT, "dashboard", str(runs), "--port=0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r"(http://\S+)/\?token=(\S+)", server.stdout.readline())
        assert found
        yield f"{found.group(1)}/?token={found.group(2)}"
    finally:
        server.terminate()
        server.wait()


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        path = shutil.which("chromium")
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def page_at(
    opened: Browser, address: str, scheme: Any = "light", width: int = 1200, height: int = 900
) -> Iterator[Page]:
    page = opened.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1)
    page.goto(address)
    yield page
    page.close()


def dashboard_runs(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, address, height=560) as page:
        page.wait_for_selector("#runs progress")
        page.screenshot(path=target)


def dashboard_run(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, address, height=980) as page:
        page.goto(address.partition("?")[0] + "run/0/now")
        page.wait_for_selector("#f-findings section")
        page.screenshot(path=target)


def dashboard_phone(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, address, "dark", 400, 860) as page:
        page.goto(address.partition("?")[0] + "run/0/now")
        page.wait_for_selector("#f-findings section")
        page.screenshot(path=target)


def dashboard_compare(opened: Browser, address: str, work: Path, target: Path) -> None:
    runs = "&".join(f"run=0/lr-{rate}" for rate in ("0.05", "0.1", "0.4"))
    with page_at(opened, f"{address.partition('?')[0]}compare?{runs}&by=time", height=900) as page:
        page.wait_for_selector("#f-body table")
        page.screenshot(path=target)


def dashboard_what_if(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, f"{address.partition('?')[0]}run/0/no-workers") as page:
        page.wait_for_selector("#f-findings section")
        page.locator("input[name='data.workers']").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_selector("#what-if-answer table")
        page.locator("#what-if-section").screenshot(path=target)


def report(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, (work / "runs/lr-0.1/report.html").as_uri(), height=1300) as page:
        page.screenshot(path=target)


def report_timeline(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, (work / "runs/lr-0.1/report.html").as_uri(), "dark") as page:
        page.locator("#timeline").screenshot(path=target)


def compare(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, (work / "compare.html").as_uri(), height=1300) as page:
        page.screenshot(path=target)


def lr_find(opened: Browser, address: str, work: Path, target: Path) -> None:
    with page_at(opened, (work / "runs/shapes-lr-find/lr-find.html").as_uri(), height=620) as page:
        page.screenshot(path=target)


PICTURES = {
    "dashboard": dashboard_runs,
    "dashboard-run": dashboard_run,
    "dashboard-phone": dashboard_phone,
    "dashboard-compare": dashboard_compare,
    "dashboard-what-if": dashboard_what_if,
    "report": report,
    "report-timeline": report_timeline,
    "compare": compare,
    "lr-find": lr_find,
}
if __name__ == "__main__":
    main()
