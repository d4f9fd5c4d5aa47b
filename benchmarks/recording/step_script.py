"""A plain training loop of small steps that says how long they took. With --traceml, wrapped as TraceML wants it; with
--sleeper, beside a thread that does nothing."""

import argparse
import contextlib
import hashlib
import json
import statistics
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
for name in ("width", "layers", "batch", "steps"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--out", required=True)
parser.add_argument("--traceml", action="store_true")
parser.add_argument("--sleeper", action="store_true")
options = parser.parse_args()
WARM_UP = 50


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, count = options.width, 50 * options.batch
    loader = DataLoader(TensorDataset(torch.randn(count, width), torch.randint(0, 10, (count,))), options.batch)
    blocks = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(options.layers))
    model = nn.Sequential(*blocks, nn.Linear(width, 10))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    step_of = contextlib.nullcontext
    if options.traceml:
        import traceml_ai as traceml

        traceml.init()
        step_of = traceml.trace_step
    if options.sleeper:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    ends = []
    while len(ends) < WARM_UP + options.steps:
        for x, y in loader:
            with step_of(model):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            ends.append(time.perf_counter())
    times = [later - earlier for earlier, later in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    told = {
        "mean": statistics.fmean(times),
        "median": statistics.median(times),
        "modules": sum(1 for _ in model.modules()),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    with open(options.out, "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
