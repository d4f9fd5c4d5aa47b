"""What gives speed back over a 100 Mb/s link: ResNet-18's 45 MB of gradients between two nodes, compute emulated.

    python benchmarks/slow_link.py speed              # needs root: two network namespaces, a veth pair, tc tbf
    python benchmarks/slow_link.py accuracy           # two ranks that really train, on the CPU of this machine
    python benchmarks/slow_link.py report             # the tables, from the figures kept so far

Each part can be run for some of its rows (--only fp16,local-32), to keep the machine for a few minutes at a time; rows
are merged into the JSON file of the day.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from flatout.data.source.shapes import make_shapes  # noqa: E402
from flatout.runs.tables import read_table  # noqa: E402
from namespaces import two_nodes, why_not  # noqa: E402
from training import write_recipe  # noqa: E402

# name -> (parallel.*, train.accumulate and factor on the batch, measured steps)
ROWS: dict[str, tuple[dict[str, Any], int, int]] = {
    "plain": ({}, 1, 5),
    "fp16": ({"compress": "fp16"}, 1, 6),
    "bf16": ({"compress": "bf16"}, 1, 6),
    "accumulate-4": ({}, 4, 4),
    "accumulate-8": ({}, 8, 4),
    "powersgd-4": ({"compress": "powersgd", "powersgd_rank": 4, "powersgd_start_step": 2}, 1, 20),
    "local-8": ({"local_steps": 8}, 1, 16),
    "local-32": ({"local_steps": 32}, 1, 32),
    "diloco-32": ({"local_steps": 32, "outer_lr": 0.7, "outer_momentum": 0.9}, 1, 32),
}
BATCH = (
    64  # samples of a rank and micro-batch; 120 ms of compute, about a T4's on ResNet-18 at 64 pixels and twice that
)
COMPUTE = {"base_seconds": 0.010, "seconds_per_sample": 0.0017}


def speed(only: list[str], rate: str) -> Iterator[tuple[str, Any]]:
    if (reason := why_not()) is not None:
        sys.exit(f"slow_link: {reason}")
    with tempfile.TemporaryDirectory() as name, two_nodes(rate) as nodes:
        work = Path(name)
        for _ in make_shapes(work / "data", 4, 1400, 16, 4):
            pass
        for row in only:
            parallel, factor, steps = ROWS[row]
            skipped = 4 if "powersgd_start_step" in parallel else 1
            config = write_recipe(
                work / f"{row}.yaml", work / "data", name=row, device="emulated", emulated=COMPUTE, threads=1,
                data__batch_size=BATCH * factor, data__workers=1,
                model={"name": "resnet18", "stem": "small", "width": 1.0},
                train={"epochs": 20, "max_steps": steps + skipped, "accumulate": factor, "lr": 0.05},
                checkpoint={"every_epochs": 100}, parallel={"mode": "ddp", "nodes": 2, **parallel},
            )  # fmt: skip
            processes = nodes.start("-m", "flatout", "train", config, cwd=work)
            assert [process.wait(400) for process in processes] == [0, 0], (work / "node0.txt").read_text()
            rows = read_table(work / "runs" / row / "steps.csv")[skipped:]
            link = json.loads((work / "runs" / row / "link.json").read_text())
            seconds = [float(each["step_seconds"]) for each in rows]
            samples = sum(int(each["samples"]) for each in rows)
            yield row, {
                "step_seconds": statistics.mean(seconds), "spread": [min(seconds), max(seconds)],
                "samples_per_second": samples / sum(seconds), "steps": len(rows),
                "bytes_sent_per_sample": sum(int(each["bytes_sent"]) for each in rows) / samples,
                "predicted_step_seconds": link["predicted"]["step_seconds"], "link_bits_per_second": link["bits_per_second"],
            }  # fmt: skip


ACCURACY_STEPS = {"plain": {}, "fp16": {"compress": "fp16"}, "powersgd-4": {"compress": "powersgd", "powersgd_start_step": 13},
                  "local-8": {"local_steps": 8, "local_from_epoch": 1}, "local-32": {"local_steps": 32, "local_from_epoch": 1},
                  "diloco-32": {"local_steps": 32, "local_from_epoch": 1, "outer_lr": 0.7, "outer_momentum": 0.9}}  # fmt: skip


def accuracy(only: list[str], seeds: int, data: Path) -> Iterator[tuple[str, Any]]:
    """Shapes, a narrow ResNet-18, the same recipe and global batch for every row."""
    if not data.exists():
        for _ in make_shapes(data, 20, 100, 32, 100):
            pass
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for row in only:
            reached = []
            for seed in range(seeds):
                config = write_recipe(
                    work / "config.yaml", data, name=f"{row}-{seed}", threads=1,
                    views={"small": {"base": "train-64", "size": 32, "pad": 4}, "plain": {"base": "eval-64", "size": 32}},
                    data__batch_size=16,
                    model={"name": "resnet18", "stem": "small", "width": 0.125}, checkpoint={"every_epochs": 100},
                    train={"epochs": 14, "lr": 0.1, "seed": seed}, validate={"every_epochs": 14},
                    parallel={"mode": "ddp", "devices": 2, "preflight": False, **ACCURACY_STEPS[row]},
                )  # fmt: skip
                started = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-m", "flatout", "train", config, "--json"], cwd=work, capture_output=True, text=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                reached.append(json.loads(done.stdout)["accuracy"]["top1"])
                print(row, seed, reached[-1], f"{time.perf_counter() - started:.0f} s", flush=True)
            yield row, reached


def report(found: dict[str, Any]) -> str:
    """The tables of the results page, from the JSON alone."""
    speeds, accuracies = found.get("speed", {}), found.get("accuracy", {})
    lines = [
        "| setting | step | samples/s | per sample, against plain DDP | sent per sample | predicted step |",
        "|---|---|---|---|---|---|",
    ]
    for row, each in speeds.items():
        factor = each["samples_per_second"] / speeds["plain"]["samples_per_second"]
        lines.append(
            f"| {row} | {each['step_seconds']:.3f} s ({each['spread'][0]:.2f} to {each['spread'][1]:.2f}) | "
            f"{each['samples_per_second']:.1f} | {factor:.1f}x | {each['bytes_sent_per_sample'] / 1e3:.0f} kB | "
            f"{each['predicted_step_seconds']:.3f} s |"
        )
    lines += ["", "| setting | top-1 of each seed | mean |", "|---|---|---|"]
    for row, values in accuracies.items():
        lines.append(
            f"| {row} | {', '.join(f'{100 * each:.1f} %' for each in values)} | {100 * statistics.mean(values):.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "accuracy", "report"])
    parser.add_argument("--only", default="")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "flatout-shapes-20x100")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results" / f"{time.strftime('%Y-%m-%d')}-slow-link.json"
    )
    options = parser.parse_args()
    if options.part == "report":
        print(report(json.loads(options.out.read_text())))
        return
    rows = options.only.split(",") if options.only else list(ROWS if options.part == "speed" else ACCURACY_STEPS)
    part = options.part if options.rate == "100mbit" else f"{options.part}-{options.rate}"
    measured = speed(rows, options.rate) if options.part == "speed" else accuracy(rows, options.seeds, options.data)
    for row, figures in measured:
        kept = json.loads(options.out.read_text()) if options.out.exists() else {}
        kept.setdefault(part, {})[row] = figures
        options.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(row, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
