"""Does `flatout explain` of a recorded script name what was made slow? One plain script (train_script.py), one fault each.

    python benchmarks/recording/scenarios.py --jobs 2 --out benchmarks/results

A cause is right where it is the verdict's. Where the machine itself is a cause (other processes take the cores, start-up
takes long because of them), which the verdict says with figures of its monitors, the next one counts; the table shows both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dated_results import publish

SCRIPT = Path(__file__).with_name("train_script.py")
FLATOUT = Path(sys.executable).with_name("flatout")


@dataclass(frozen=True)
class Scenario:
    name: str
    options: str
    causes: tuple[str, ...]
    """Any of them is right."""
    says: str = ""
    """Must be in the finding's text."""
    ranks: int = 1


SCENARIOS = (
    Scenario("workers 0", "--workers 0 --sample-spin 0.002", ("data-workers",), "num_workers"),
    Scenario(
        "too few workers",
        "--workers 1 --sample-sleep 0.004 --persistent",
        ("data-workers", "data-fetch"),
        "num_workers",
    ),
    Scenario("slow decode", "--workers 2 --jpegs {jpegs} --persistent", ("data-decode",), "decod"),
    Scenario("slow disk", "--workers 2 --sample-sleep 0.012 --persistent", ("data-fetch",), "train_script.py"),
    Scenario(
        "python augmentation", "--workers 2 --sample-spin 0.004 --persistent", ("data-augment",), "train_script.py"
    ),
    Scenario("augmentation in the loop", "--batch-spin 0.03", ("host",), "train_script.py"),
    Scenario("item() every step", "--read-back 0.05", ("host",), "train_script.py"),
    Scenario("tiny batch", "--batch 1 --workers 0 --step-seconds 0 --layers 60 --no-loader", ("host",), "batch"),
    Scenario("checkpoint every step", "--save-every 1 --save-megabytes 12", ("checkpoint",), "save every"),
    Scenario("long validation", "--validate 20 --epoch-batches 20", ("validation",), "validat"),
    Scenario("slow start", "--start-sleep 30 --seconds 12", ("startup",), "train_script.py"),
    Scenario("straggler", "--late-rank 0.03 --workers 0", ("straggler",), "Rank 1", 2),
    Scenario("slow link", "--slow-link 0.03 --workers 0", ("network",), "gradients", 2),
    Scenario("memory growth", "--leak-megabytes 2 --seconds 25", ("memory",), "grows"),
    Scenario("busy host", "--burners 4", ("host",), "Other processes"),
    Scenario("idle between epochs", "--idle 1.5 --epoch-batches 25", ("host",), "sleep"),
    Scenario("non-persistent workers", "--worker-start 0.6 --epoch-batches 20", ("epoch-start",), "persistent_workers"),
    Scenario("print storm", "--prints 3000", ("host",), "print"),
    Scenario(
        "two optimizers, workers 0", "--optimizers 2 --workers 0 --sample-spin 0.002", ("data-workers",), "num_workers"
    ),
    Scenario("loss is NaN", "--nan-after 20", ("diverged",), "loss"),
    Scenario("crash", "--crash-after 30", ("unexplained",), "a label is out of range"),
    Scenario("accumulate 4, healthy", "--accumulate 4 --persistent", ("compute",)),
    Scenario("healthy, 2 workers", "--persistent", ("compute",)),
    Scenario("healthy, no loader", "--no-loader", ("compute",)),
    Scenario("healthy, 2 ranks", "--workers 0", ("compute",), "", 2),
    Scenario("healthy, workers 0", "--workers 0 --step-seconds 0.06", ("compute",)),
)
MACHINE = ("busy-host", "startup-time", "unattributed")


def make_jpegs(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    folder.mkdir()
    noise = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(noise.integers(0, 255, (320, 320, 3), dtype=np.uint8)).save(
            folder / f"{number}.jpg", quality=90
        )


def folder_of(scenario: Scenario, home: Path) -> Path:
    return home / scenario.name.replace(" ", "-").replace(",", "").replace("()", "")


def is_over(folder: Path) -> bool:
    summary = folder / "run/summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] != "running"


def run(scenario: Scenario, home: Path) -> dict:
    folder = folder_of(scenario, home)
    folder.mkdir()
    options = scenario.options.format(jpegs=home / "jpegs").split()
    launcher = [sys.executable]
    if scenario.ranks > 1:
        launcher = [
            str(Path(sys.executable).with_name("torchrun")),
            "--standalone",
            "--nproc-per-node",
            str(scenario.ranks),
        ]
    command = [str(FLATOUT), "record", "--run", str(folder / "run"), "--", *launcher, str(SCRIPT), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "out.txt").open("w") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    return explained(scenario, folder)


def explained(scenario: Scenario, folder: Path) -> dict:
    answer = subprocess.run([str(FLATOUT), "explain", str(folder / "run"), "--json"], capture_output=True, text=True)
    summary = json.loads((folder / "run/summary.json").read_text())
    return {"scenario": scenario.name, **judge(scenario, json.loads(answer.stdout), summary)}


def judge(scenario: Scenario, explained: dict, summary: dict) -> dict:
    found = [each for each in explained["findings"] if each["cause"]]
    wall, parts = summary["time"]["wall_seconds"], summary["time"]["parts"]
    stepping = wall - (0.0 if "startup" in scenario.causes else parts["startup"])
    worth = [each for each in found if each["saved_seconds"] >= 0.05 * stepping or each["gain"] is None]
    own = [each for each in worth if each["id"] not in MACHINE or scenario.name in ("busy host", "slow start")]
    cause = own[0]["cause"] if own else "compute"
    said = json.dumps(own[0]) if own else explained["verdict"]
    right = cause in scenario.causes and scenario.says in said
    return {
        "expected": " or ".join(scenario.causes),
        "verdict": explained["cause"],
        "beside the machine": cause,
        "right": right,
        "strictly": explained["cause"] in scenario.causes,
        "unattributed": parts["unattributed"] / wall,
        "wall": wall,
        "says": own[0]["title"] if own else explained["verdict"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge the runs that are in --keep")
    options = parser.parse_args()
    home = options.keep or Path(tempfile.mkdtemp())
    home.mkdir(exist_ok=True)
    chosen = [each for each in SCENARIOS if options.only in each.name]
    if options.judge:
        rows = [explained(each, folder_of(each, home)) for each in chosen if is_over(folder_of(each, home))]
        publish("recording-scenarios", "Recorded scripts: is the cause named?", table(rows), options.out)
        return
    make_jpegs(home / "jpegs")
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = []
        for row in pool.map(lambda each: run(each, home), chosen):
            rows.append(row)
            print(row["scenario"], "right" if row["right"] else "WRONG", row["verdict"], "|", row["says"], flush=True)
    publish("recording-scenarios", "Recorded scripts: is the cause named?", table(rows), options.out)
    if options.keep is None:
        shutil.rmtree(home)


def table(rows: list[dict]) -> str:
    lines = [
        "| scenario | expected | verdict | cause beside the machine's own | right | unattributed | what it says |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['scenario']} | {row['expected']} | {row['verdict']} | {row['beside the machine']} | "
        f"{'yes' if row['right'] else 'no'} | {100 * row['unattributed']:.2f} % | {row['says']} |"
        for row in rows
    ]
    right, strictly = sum(row["right"] for row in rows), sum(row["strictly"] for row in rows)
    note = f"{right} of {len(rows)} right; {strictly} of {len(rows)} also where the machine's own load counts as a wrong answer."
    return "\n".join([*lines, "", note, ""])


if __name__ == "__main__":
    main()
