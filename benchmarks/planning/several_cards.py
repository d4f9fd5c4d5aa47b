"""Several cards of one machine: how much of n times one card's speed is reached, published and predicted.

Only rows whose own one-card row is published too, so that the card's speed plays no part; image models, because most of
the text models' scripts exchange their gradients after the backward pass, not beside it.

  .venv/bin/python benchmarks/planning/several_cards.py [--rows throughput.csv]
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import zoo
from rows import SHARED
from trace_models import load_traces, trace_key

from flatout.cost.machines import Machine
from flatout.planning.cards import load_cards
from flatout.planning.options import exposed_exchange

SAME = ("gpu", "model", "precision", "layout", "batch_per_gpu", "software")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=SHARED / "throughput.csv")
    rows = [row for row in csv.DictReader(parser.parse_args().rows.open(encoding="utf-8")) if row["batch_per_gpu"]]
    alone = {tuple(row[key] for key in SAME): float(row["samples_per_second"]) for row in rows if row["gpus"] == "1"}
    traces, cards, found = load_traces(), load_cards(), defaultdict(list)
    for row in rows:
        one, count = alone.get(tuple(row[key] for key in SAME)), int(row["gpus"])
        if one is None or count == 1 or row["model"] in zoo.TEXT or trace_key(row) not in traces:
            continue
        step = float(row["batch_per_gpu"]) / one
        machine = Machine("", "own", row["gpu"], count, None, None, None, None, None, None, "", "")
        lost = exposed_exchange(1, machine, cards[row["gpu"]], traces[trace_key(row)], step)
        reached = float(row["samples_per_second"]) / one / count
        inside = step / (step + lost.high) <= reached <= step / (step + lost.low)
        found[count].append((reached, step / (step + lost.value), inside))
    print(
        "| cards | rows | reached, published | predicted | mean error | inside the interval |\n|---|---|---|---|---|---|"
    )
    for count, each in sorted(found.items()):
        error = fmean(abs(told / reached - 1) for reached, told, _ in each)
        reached, told, inside = (fmean(column) for column in zip(*each, strict=True))
        print(f"| {count} | {len(each)} | {reached:.2f} | {told:.2f} | {error:.1%} | {inside:.0%} |")


if __name__ == "__main__":
    main()
