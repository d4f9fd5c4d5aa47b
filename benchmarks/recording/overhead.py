"""What the recorder adds to a step: blocks of bare and of recorded steps, taken in turns in one process.

    python benchmarks/recording/overhead.py --out benchmarks/results

CPU time of the training thread, which other processes on the machine do not change; the sampler's thread is counted apart.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dated_results import publish
from flatout.recording.files import FOLDER
from flatout.recording.ledger import ScriptLedger
from flatout.recording.lines import LineSampler
from flatout.recording.patches import Hooks

BLOCK, ROUNDS = 25, 8


def model(width: int, layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)), nn.Linear(width, 10)
    )


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> float:
    started = time.thread_time()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return (time.thread_time() - started) / BLOCK


def sampler_cpu_seconds() -> float:
    """Of 20 looks: what a second of sampling costs."""
    sampler = LineSampler(threading.get_ident(), lambda: "other")
    started = time.thread_time()
    for _ in range(2000):
        sampler._sample()
    return (time.thread_time() - started) / 2000 * 20


def measure(width: int, layers: int, batch: int) -> str:
    loader = DataLoader(TensorDataset(torch.randn(BLOCK * batch, width), torch.randint(0, 10, (BLOCK * batch,))), batch)
    nets = [model(width, layers) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), 1e-3) for net in nets]
    added, bare_all = [], []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        ledger = ScriptLedger(Path(folder), time.perf_counter())
        for _ in range(ROUNDS):
            bare = steps(nets[0], optimizers[0], loader)
            hooks = Hooks(ledger)
            hooks.install()
            recorded = steps(nets[1], optimizers[1], loader)
            hooks.remove()
            added.append(recorded - bare)
            bare_all.append(bare)
        ledger.close({"cause": None})
    equal = all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))
    middle, bare = statistics.median(added), statistics.median(bare_all)
    low, high = sorted(added)[1], sorted(added)[-2]
    modules = sum(1 for _ in nets[0].modules())
    return (
        f"| {modules} modules, batch {batch} | {1000 * bare:.2f} ms | {1e6 * middle:.0f} µs ({1e6 * low:.0f} to {1e6 * high:.0f}) | "
        f"{100 * middle / bare:.2f} % | {'yes' if equal else 'NO'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| model | CPU time of a bare step | the recorder adds | of the step | weights equal |",
        "|---|---|---|---|---|",
    ]
    lines += [measure(64, 4, 8), measure(256, 20, 64), measure(256, 20, 256)]
    note = f"The sampler takes {1000 * sampler_cpu_seconds():.2f} ms of CPU time a second, in a thread of its own."
    publish("recording-overhead", "What recording adds to a step", "\n".join([*lines, "", note, ""]), options.out)


if __name__ == "__main__":
    main()
