"""What the recorder adds to a step: whole processes, bare, recorded and under TraceML, taken in turns.

    python benchmarks/recording/overhead.py --traceml VENV --out benchmarks/results

And, within one process, the CPU time that the hooks alone take of the training thread. Needs an idle machine, for some
ten minutes (fourteen with TraceML; a third of that with --longest). Runs are long enough for the start of the command,
in which the recorder still does this and that, not to decide.

A process of which all threads but one are asleep is slower than one that has no other: glibc locks without atomic
instructions as long as nobody else is there, and torch gives Python's lock back in every operation. The recorder
has a thread, so one shape is also run with a thread that does nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
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

SCRIPT = Path(__file__).with_name("step_script.py")
FLATOUT = Path(sys.executable).with_name("flatout")
BLOCK, BLOCKS = 50, 20
SHAPES = ((64, 4, 8, 5000), (64, 60, 8, 1200), (256, 20, 256, 400))
"""Width, layers, batch, steps."""
SLEEPER = "a thread that sleeps"


def command(mode: str, shape: tuple[int, ...], folder: Path, traceml: Path | None) -> list[str]:
    named = zip(("--width", "--layers", "--batch", "--steps"), map(str, shape), strict=True)
    script = [str(SCRIPT), *(word for pair in named for word in pair), "--out", str(folder / "out.json")]
    if mode == "TraceML":
        launcher = [str(traceml / "bin/traceml"), "run", script[0], "--logs-dir", str(folder / "logs")]
        return [*launcher, "--run-name", "it", "--args", "--traceml", *script[1:]]
    bare = [sys.executable, *script]
    if mode == SLEEPER:
        return [*bare, "--sleeper"]
    return bare if mode == "bare" else [str(FLATOUT), "record", "--run", str(folder / "run"), "--", *bare]


def one_process(mode: str, shape: tuple[int, ...], traceml: Path | None) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name), {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command(mode, shape, folder, traceml), env=environment, capture_output=True, check=True)
        return json.loads((folder / "out.json").read_text())


def one_round(number: int, modes: list[str], shape: tuple[int, ...], traceml: Path | None) -> dict[str, dict]:
    """Every second round the other way about: a machine that grows slower favours nobody."""
    return {mode: one_process(mode, shape, traceml) for mode in (modes if number % 2 == 0 else modes[::-1])}


def processes(rounds: int, traceml: Path | None, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    lines = [
        "| modules | bare step | with | adds (mean of a step) | adds (median step) | of the step | weights equal |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for shape in shapes:
        modes = ["bare", "recorded", *([SLEEPER] if shape == SHAPES[1] else []), *(["TraceML"] if traceml else [])]
        taken = [one_round(number, modes, shape, traceml) for number in range(rounds)]
        bare = statistics.median(each["bare"]["mean"] for each in taken)
        for mode in modes[1:]:
            mean, median = (added([each[mode][of] - each["bare"][of] for each in taken]) for of in ("mean", "median"))
            share = statistics.median(each[mode]["mean"] / each["bare"]["mean"] - 1 for each in taken)
            equal = all(each[mode]["weights"] == each["bare"]["weights"] for each in taken)
            lines.append(
                f"| {taken[0]['bare']['modules']} | {1e3 * bare:.2f} ms | {mode} | {mean} | {median} | "
                f"{100 * share:.2f} % | {'yes' if equal else 'NO'} |"
            )
            print(lines[-1], flush=True)
    return lines


def added(seconds: list[float]) -> str:
    """Of pairs of processes: the median, and the quartiles."""
    low, middle, high = (1e6 * each for each in statistics.quantiles(seconds, n=4, method="inclusive"))
    return f"{middle:.0f} µs ({low:.0f} to {high:.0f})"


def steps(net: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> float:
    started = time.thread_time()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return (time.thread_time() - started) / BLOCK


def hooks_alone(width: int, layers: int, batch: int) -> str:
    """CPU time of the training thread in blocks of bare and hooked steps by turns; after each change a block does not
    count, because Python learns its types anew."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(BLOCK * batch, width), torch.randint(0, 10, (BLOCK * batch,))), batch)
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)), nn.Linear(width, 10)
    )
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    more, bare_all = [], []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FOLDER).mkdir()
        ledger = ScriptLedger(Path(folder), time.perf_counter())
        for _ in range(BLOCKS):
            steps(net, optimizer, loader)
            bare = steps(net, optimizer, loader)
            hooks = Hooks(ledger)
            hooks.install()
            steps(net, optimizer, loader)
            more.append(steps(net, optimizer, loader) - bare)
            hooks.remove()
            bare_all.append(bare)
        ledger.close({"cause": None})
    bare = statistics.median(bare_all)
    modules = sum(1 for _ in net.modules())
    return f"| {modules} | {1000 * bare:.2f} ms | {added(more)} | {100 * statistics.median(more) / bare:.2f} % |"


def sampler_cpu_seconds() -> float:
    """Of 20 looks: what a second of sampling costs."""
    sampler = LineSampler(threading.get_ident(), lambda: "other")
    started = time.thread_time()
    for _ in range(2000):
        sampler._sample()
    return (time.thread_time() - started) / 2000 * 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--traceml", type=Path, help="environment with traceml-ai")
    parser.add_argument("--longest", action="store_true", help="whole processes of the longest step alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "## Whole processes",
        "",
        f"Wall clock, {options.rounds} rounds in turns. Added is the median of the rounds' differences, quartiles in brackets.",
        "",
    ]
    lines += processes(options.rounds, options.traceml, SHAPES[-1:] if options.longest else SHAPES)
    if options.longest:
        return publish("recording-overhead-longest", "What recording adds", "\n".join(lines), options.out)
    lines += ["", "## The hooks alone", "", "CPU time of the training thread; quartiles in brackets.", ""]
    lines += ["| modules | bare step | hooks add | of the step |", "|---|---|---|---|"]
    lines += [hooks_alone(*shape[:3]) for shape in SHAPES[:2]]  # of long steps it is less than they vary
    lines += [
        "",
        f"The sampler takes {1000 * sampler_cpu_seconds():.2f} ms of CPU time a second, in its own thread.",
        "",
    ]
    publish("recording-overhead", "What recording adds to a step", "\n".join(lines), options.out)


if __name__ == "__main__":
    main()
