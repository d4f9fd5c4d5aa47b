"""What a user gets who sets nothing, first epoch included, beside fixed settings of flatout's own loader.

python as_shipped.py DIR [--rounds 3] [--out FILE.md] [--only TEXT]

DIR/data/tiny and DIR/data/photos are made by unpack_tiny.py and make_photos.py, the packs here. Every measurement is a
fresh process; in each round every row is measured once, in another order. Ratios within a round are what counts, and
processor time for each sample where other work shares the cores.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from contract import busy_cpu_seconds

EPOCHS = 3
BATCH = 256
DATA = {
    "64 px folder": ("tiny", "train-64"),
    "64 px pack": ("tiny-pack", "train-64"),
    "224 of photos, folder": ("photos", "train-224"),
    "224 of photos, pack": ("photos-pack", "train-224"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    #   "default, one epoch": {"epochs": 1},
    #   "default, 90 epochs": {"epochs": 90},
    "cache off, 1 worker": {"cache": "off", "workers": 1},
    "cache off, 2 workers": {"cache": "off", "workers": 2},
    "cache memory, 2 workers": {"cache": "memory", "workers": 2},
    "cache disk, 2 workers": {"cache": "disk", "workers": 2},
}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(path: Path, view: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Three epochs of a loader that nothing else slows down; seconds count from the call that opens it."""
    import flatout

    flatout.open_batches  # noqa: B018 - imports are no part of the first batch
    busy, cpu, started = busy_cpu_seconds(), cpu_seconds(), time.perf_counter()
    source = flatout.open_batches(path, view=view, batch_size=BATCH, **settings)
    ends, cpus, first = [], [], 0.0
    for epoch in range(min(EPOCHS, settings.get("epochs", EPOCHS))):
        for _ in source.epoch(epoch):
            first = first or time.perf_counter() - started
        ends.append(time.perf_counter() - started)
        cpus.append(cpu_seconds() - cpu)
    foreign = (busy_cpu_seconds() - busy - cpus[-1]) / (ends[-1] * (os.cpu_count() or 1))
    source.close()
    return {
        "epoch 0": source.samples / ends[0],
        "epoch 1": source.samples / (ends[1] - ends[0]) if len(ends) > 1 else None,
        "total seconds": ends[-1] if len(ends) == EPOCHS else None,
        "first batch ms": 1e3 * first,
        "cpu us, epoch 0": 1e6 * cpus[0] / source.samples,
        "cpu us, all": 1e6 * cpus[-1] / source.samples / len(ends),
        "peak RSS MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "foreign": max(0.0, foreign),
        "notes": "; ".join(source.notes),
    }


def measure_apart(folder: Path, view: str, settings: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process with an empty cache folder."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        command = [sys.executable, __file__, "--measure", str(folder), view, json.dumps(settings)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def make_packs(folder: Path) -> None:
    for name in ("tiny", "photos"):
        if not (folder / f"{name}-pack").exists():
            program = [sys.executable, "-c", "from flatout.cli.main import run; run()"]
            subprocess.run([*program, "data", "pack", str(folder / name), str(folder / f"{name}-pack")], check=True)


def table(rows: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Medians, with lowest and highest of what the rounds gave for epoch 0."""
    columns = (
        "epoch 0",
        "epoch 1",
        "total seconds",
        "first batch ms",
        "cpu us, epoch 0",
        "cpu us, all",
        "peak RSS MB",
        "foreign",
    )
    lines = [f"| data | setting | {' | '.join(columns)} | said |", "|---" * (len(columns) + 3) + "|"]
    for (data, setting), runs in rows.items():
        cells = []
        for column in columns:
            values = [run[column] for run in runs if run[column] is not None]
            digits = 2 if column in ("total seconds", "foreign") else 0
            cells.append(f"{median(values):,.{digits}f}" if values else "")
            if column == "epoch 0":
                cells[-1] += f" ({min(values):,.0f} to {max(values):,.0f})"
        lines.append(f"| {data} | {setting} | {' | '.join(cells)} | {runs[-1]['notes']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose data or setting contains one of these, comma-separated")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = arguments.dir / "data"
    make_packs(folder)
    words = arguments.only.split(",")
    wanted = [(d, s) for d in DATA for s in SETTINGS if any(word in f"{d}: {s}" for word in words)]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {row: [] for row in wanted}
    for number in range(arguments.rounds):
        for data, setting in random.Random(number).sample(wanted, len(wanted)):
            name, view = DATA[data]
            rows[data, setting].append(measure_apart(folder / name, view, SETTINGS[setting]))
            print(f"round {number}: {data}, {setting}: {rows[data, setting][-1]}", file=sys.stderr, flush=True)
    print(table(rows))
    if arguments.out:
        arguments.out.write_text(table(rows) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))))
    else:
        main()
