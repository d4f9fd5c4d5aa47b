"""From opening a folder to its first batch and its first epoch: an older checkout and this one, in turns.

git worktree add OLD COMMIT && (cd OLD && python setup.py build_ext --inplace)
python benchmarks/loaders/first_batch.py OLD --data FOLDER [--rounds 7] [--out benchmarks/results]

Every turn is a process with an empty cache folder that opens the folder twice: the second start finds what the first
one left. CPU is that of all threads: unlike time, it hardly changes beside other work.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from dated_results import publish  # noqa: E402

SETTINGS = {"defaults": {}, "cache off, 2 workers": {"cache": "off", "workers": 2}}
FIGURES = {"opened": "opening", "batch": "first batch", "epoch": "epoch 0"}
TURN = """
import json, sys, time, flatout
flatout.open_batches
def now():
    return 1e3 * time.perf_counter(), 1e3 * time.process_time()
began = now()
loader = flatout.open_batches(sys.argv[1], view="train-64", batch_size=256, **json.loads(sys.argv[2]))
opened, batch = now(), None
for _ in loader.epoch(0):
    batch = batch or now()
epoch = now()
loader.close()
since = {"opened": opened, "batch": batch, "epoch": epoch}
print(json.dumps({name: [end - start for end, start in zip(at, began)] for name, at in since.items()}))
"""


def start(tree: Path, data: Path, settings: dict[str, object], cache: str) -> dict[str, list[float]]:
    """Milliseconds from the call that opens the folder, and of CPU, imports apart."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-c", TURN, str(data), json.dumps(settings)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def compare(trees: dict[str, Path], data: Path, settings: dict[str, object], rounds: int) -> list[str]:
    """Rows of the table: what, which start, before and now, ratio by round."""
    found: dict[tuple[str, int], list[dict[str, list[float]]]] = {}
    for number in range(rounds):
        for name in sorted(trees, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as cache:
                for first_or_second in (1, 2):
                    told = start(trees[name], data, settings, cache)
                    found.setdefault((name, first_or_second), []).append(told)
    rows = []
    for at in (1, 2):
        for figure, title in FIGURES.items():
            for column, unit in enumerate(("ms", "CPU ms")):
                before, now = ([each[figure][column] for each in found[name, at]] for name in ("before", "now"))
                ratios = [new / old for old, new in zip(before, now, strict=True)]
                cells = [f"{title}, {unit}", str(at), shown(before, 0), shown(now, 0), shown(ratios, 2)]
                rows.append(f"| {' | '.join(cells)} |")
    return rows


def shown(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout with its extension built")
    parser.add_argument("--data", type=Path, required=True, help="image folder, or whatever else data.path takes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = []
    for title, settings in SETTINGS.items():
        lines += [
            f"## {title}",
            "",
            "| from the call | start | before | now | now over before, by round |",
            "|---|---|---|---|---|",
        ]
        lines += [*compare({"before": options.old, "now": ROOT}, options.data, settings, options.rounds), ""]
    told = subprocess.run(["git", "-C", options.old, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    note = f"Before is {told.stdout.strip()}; {options.rounds} rounds in turns, medians (least to most).\n"
    publish("listing", "To the first batch of a folder", "\n".join([*lines, note]), options.out)


if __name__ == "__main__":
    main()
