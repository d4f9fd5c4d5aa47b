"""flatout's loader of an older checkout and of this one, in turns: warm, 2 workers, cache off, batches of 256.

git worktree add OLD COMMIT && (cd OLD && python setup.py build_ext --inplace)
python benchmarks/loaders/before_and_now.py OLD --tiny FOLDER --photos FOLDER [--rounds 5] [--out benchmarks/results]
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from dated_results import publish  # noqa: E402

SECONDS = 2.5
TURN = f"""
import itertools, sys, time, flatout
batches = flatout.open_batches(sys.argv[1], view=sys.argv[2], batch_size=256, workers=2, cache="off")
began, warm, samples = time.perf_counter(), None, 0
for batch in itertools.chain.from_iterable(map(batches.epoch, itertools.count())):
    now = time.perf_counter()
    if warm is None:
        warm = now if now - began > 1 else None
        continue
    samples += len(batch.labels)
    if now - warm > {SECONDS}:
        break
print(samples / (time.perf_counter() - warm))
"""


def turn(tree: Path, data: Path, view: str) -> float:
    """Samples a second."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    told = subprocess.run(
        [sys.executable, "-c", TURN, str(data), view], env=environment, capture_output=True, text=True, check=True
    )
    return float(told.stdout.split()[-1])


def compare(old: Path, data: Path, view: str, rounds: int) -> str:
    trees, rates = {"before": old, "now": ROOT}, {"before": [], "now": []}
    for number in range(rounds):
        for name in ("before", "now") if number % 2 else ("now", "before"):
            rates[name].append(turn(trees[name], data, view))
    ratios = [now / before for before, now in zip(rates["before"], rates["now"], strict=True)]
    shown = [f"{statistics.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})" for each in rates.values()]
    return (
        f"| {view} | {' | '.join(shown)} | {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout with its extension built")
    parser.add_argument("--tiny", type=Path, required=True, help="image folder of 64 pixels")
    parser.add_argument("--photos", type=Path, required=True, help="image folder of photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = ["| view | before, samples/s | now, samples/s | now over before, by round |", "|---|---|---|---|"]
    lines += [
        compare(options.old, data, view, options.rounds)
        for data, view in ((options.tiny, "train-64"), (options.photos, "train-224"))
    ]
    commit = subprocess.run(["git", "-C", options.old, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    note = f"\nBefore is {commit.stdout.strip()}; {options.rounds} rounds in turns, medians (least to most).\n"
    publish("loader-before-and-now", "The loader, before and now", "\n".join(lines) + "\n" + note, options.out)


if __name__ == "__main__":
    main()
