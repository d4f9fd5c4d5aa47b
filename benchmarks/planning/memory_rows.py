"""Published facts of memory (memory.csv) beside what is computed for the same model, batch and card.

.venv/bin/python benchmarks/planning/memory_rows.py [--rows memory.csv] [--out FILE.md]
"""

import argparse
import csv
from pathlib import Path

import torch
from rows import SHARED
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from trace_models import load_traces, trace_key
from zoo import samples_per_row

from flatout.planning.cards import load_cards
from flatout.planning.memory import MARGIN, MemorySetup, memory_of
from flatout.planning.tracing import Step, trace
from flatout.planning.work import TracedWork
from flatout.tasks.classification.resnet import ResNet, resnet

ALLOWED = 0.10
"""How far above a card's memory a batch that is known to run may be computed to be."""


def recomputing(model: str, pixels: int) -> TracedWork:
    """As story E did it: one re-entrant checkpoint around the backbone, whose input needs no gradient. Nothing of the
    backbone is kept, and nothing of it is trained either, which the story found out later."""

    def loss(net: ResNet, batch: int) -> Tensor:
        body = nn.Sequential(
            net.conv1, net.bn1, net.relu, net.maxpool, net.layer1, net.layer2, net.layer3, net.layer4, net.avgpool
        )
        features = checkpoint(body, torch.zeros(batch, 3, pixels, pixels), use_reentrant=True)
        return F.cross_entropy(net.fc(features.flatten(1)), torch.zeros(batch, dtype=torch.long))

    def sgd(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    return trace(Step(lambda: resnet(model, 200), loss, sgd), (32, 256))


def read_facts(path: Path) -> tuple[list[tuple[dict[str, str], float]], int]:
    """Each row with the computed peak in bytes; and how many had no trace or batch."""
    traces, found, left_out = load_traces(), [], 0
    for row in csv.DictReader(path.open(encoding="utf-8")):
        work = traces.get(trace_key(row))
        if work is None or not row["batch_per_gpu"]:
            left_out += 1
            continue
        if "with gradient checkpointing" in row["note"]:
            work = recomputing(row["model"], int(row["pixels"]))
        batch = float(row["batch_per_gpu"])
        if row["model"] == "transformer_big":
            batch /= samples_per_row(row["model"], 0)
        found.append((row, memory_of(work, MemorySetup(round(batch))).peak_bytes))
    return found, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=SHARED / "memory.csv")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    cards = load_cards()
    facts, left_out = read_facts(arguments.rows)
    out = ["# Published facts of memory beside what is computed", "", "`python benchmarks/planning/memory_rows.py`", ""]
    for fact in ("fits", "does_not_fit_inferred"):
        rows = [(row, peak / cards[row["gpu"]].memory_bytes) for row, peak in facts if row["fact"] == fact]
        if fact == "fits":
            within = sum(share <= 1 + ALLOWED for _, share in rows)
            said = sum(share * (1 + MARGIN) <= 1 for _, share in rows)
            out.append(
                f"{len(rows)} batches that ran: {within} are computed to fit within {ALLOWED:.0%}; {said} are said to fit with "
                f"{MARGIN:.0%} to spare, as `flatout fit` says it. Furthest above:"
            )
        else:
            said = sum(share * (1 + MARGIN) > 1 for _, share in rows)
            out.append(f"{len(rows)} batches that were skipped or failed: {said} are said not to fit. Furthest below:")
        out += ["", "| of the card's memory | card | model | precision | layout | batch |", "|---|---|---|---|---|---|"]
        for row, share in sorted(rows, key=lambda each: each[1], reverse=fact == "fits")[:12]:
            cells = (row["gpu"], row["model"], row["precision"], row["layout"], row["batch_per_gpu"])
            out.append(f"| {share:.1%} | " + " | ".join(cells) + " |")
        out.append("")
    out += ["| peak | card | model | batch | stated | computed | error |", "|---|---|---|---|---|---|---|"]
    for row, peak in facts:
        if row["fact"] == "peak_gb":
            error = peak / 1e9 / float(row["value_gb"]) - 1
            kind = "checkpointing" if "checkpointing" in row["note"] else "plain"
            cells = (
                kind,
                row["gpu"],
                row["model"],
                row["batch_per_gpu"],
                f"{row['value_gb']} GB",
                f"{peak / 1e9:.2f} GB",
                f"{error:+.1%}",
            )
            out.append("| " + " | ".join(cells) + " |")
    out += ["", f"Left out for want of a trace or a batch: {left_out} rows."]
    print("\n".join(out))
    if arguments.out:
        arguments.out.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
