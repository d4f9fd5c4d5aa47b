"""What a training step of a ResNet costs on a CPU in fp32, in bf16, and in bf16 with fused layers (train.kernels).

The three train one model each on one batch of noise, in one process, step by step in turns: noise hits all alike. With
one thread the seconds are those of the processor, which other programs do not lengthen much; with more those of the clock,
which mean something on an idle machine alone. Figures are medians, with the quartiles of the ratios of neighbouring steps.

    python benchmarks/fused_layers.py [--threads 1] [--rounds 30] [--model resnet18] [--stem standard] [--width 0.375]
        [--side 64] [--batch 128] [--out benchmarks/results]
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path

import torch

from dated_results import publish
from flatout.config.loading import load_config
from flatout.data.pixels.views import resolve_view
from flatout.decisions.compute import choose_kernels
from flatout.engine.devices import choose_device, keep_freed_memory
from flatout.engine.learner import build_learner
from flatout.tasks.classification.task import Classification, Inputs

CLASSES = 40
VARIANTS = {"fp32": ("fp32", "torch"), "bf16": ("bf16", "torch"), "bf16, fused": ("bf16", "fused")}


class Steps:
    """Of one variant: `step` gives the seconds of forward and loss, backward, and optimizer."""

    def __init__(self, options, precision, kernels):
        recipe = {
            "device": "cpu",
            "model": {"name": options.model, "stem": options.stem, "width": options.width},
            "train": {"precision": precision, "kernels": kernels, "lr": 0.01},
        }
        config, device = load_config(recipe).config, choose_device("cpu")
        if choose_kernels(config, device.facts).value != kernels:
            raise SystemExit(choose_kernels(config, device.facts).reason)
        view = resolve_view(config.data.view, config.views)
        self.task = Classification(config, CLASSES, view, view)
        self.learner = build_learner(self.task, config, device)
        self.clock = time.thread_time if options.threads == 1 else time.perf_counter
        self.inputs = Inputs(
            torch.randint(0, 256, (options.batch, 3, options.side, options.side), dtype=torch.uint8),
            torch.randint(0, CLASSES, (options.batch,)),
        )

    def step(self):
        learner, times = self.learner, [self.clock()]
        with learner.precision.autocast():
            loss = self.task.loss(learner.model, self.inputs)
        times.append(self.clock())
        learner.precision.backward(loss)
        times.append(self.clock())
        learner.precision.step(learner.optimizer)
        learner.optimizer.zero_grad(set_to_none=True)
        times.append(self.clock())
        return [after - before for before, after in pairwise(times)]


def table(seconds, clock):
    head = f"| {clock} ms of a step | whole | forward | backward | optimizer | fp32 over it | bf16 over it |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    whole = {name: [sum(parts) for parts in mine] for name, mine in seconds.items()}
    for name, mine in seconds.items():
        parts = [f"{1e3 * statistics.median(part):.1f}" for part in zip(*mine, strict=True)]
        ratios = [ratio(whole[other], whole[name]) for other in ("fp32", "bf16")]
        lines.append(f"| {' | '.join([name, f'{1e3 * statistics.median(whole[name]):.1f}', *parts, *ratios])} |")
    return "\n".join(lines) + "\n"


def ratio(over, under):
    low, middle, high = statistics.quantiles([a / b for a, b in zip(over, under, strict=True)], n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--stem", default="standard")
    parser.add_argument("--width", type=float, default=0.375)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    steps = {name: Steps(options, *variant) for name, variant in VARIANTS.items()}
    for each in steps.values():
        for _ in range(3):
            each.step()
    seconds = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, each in steps.items():
            seconds[name].append(each.step())
    clock = "processor" if options.threads == 1 else f"clock ({options.threads} threads)"
    publish("fused-layers", "Fused layers", table(seconds, clock), options.out)


if __name__ == "__main__":
    main()
