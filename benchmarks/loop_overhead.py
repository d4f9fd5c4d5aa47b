"""What flatout's loop costs over a bare PyTorch loop that does the same steps on the same batches.

Both train one model (a small ResNet, or with --data the Transformer of recipes/multi30k-small-cpu.yaml) on the same batches, in one process, step by step in turns: noise hits both alike. It is one
model on purpose: two equal ones differ by up to 4 % between themselves, by where their weights come to lie in memory.
The figure is the ratio of the two medians, with the spread of the ratios of neighbouring steps.

    python benchmarks/loop_overhead.py [--rounds 6] [--steps 30] [--data ../shared/data/multi30k]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch
from torch.nn import functional as F

from flatout.config.loading import load_config
from flatout.data.pixels.normalize import normalize
from flatout.data.source.shapes import make_shapes
from flatout.engine.devices import keep_freed_memory
from flatout.engine.learner import build_learner
from flatout.engine.loop import Job, Progress, train
from flatout.runs.steps import STEP_COLUMNS
from flatout.runs.tables import Table
from flatout.timeline import Recorder
from flatout.training.setup import prepare_setup

BATCH, SIZE, CLASSES = 64, 32, 8


def bare_steps(setup, learner, loader):
    """A loop as one would write it by hand: same model and optimizer, same batches, the loss read at every step."""
    model, optimizer = learner.model, learner.optimizer
    model.train()
    for batch in loader.epoch(0):
        loss = bare_text_loss(model, batch) if setup.config.task == "translation" else bare_loss(setup, model, batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()


def bare_loss(setup, model, batch):
    images = normalize(batch.images, setup.plan.view, channels_last=True)
    return F.cross_entropy(model(images), batch.labels, label_smoothing=0.1)


def bare_text_loss(model, batch):
    logits = model(batch.source, batch.mask, batch.target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


def flatout_steps(setup, learner, loader, folder):
    """The real loop: spans and step records written to disk, schedule, finite checks."""
    recorder, table = Recorder(folder / "spans.jsonl").open(), Table(folder / "steps.csv", STEP_COLUMNS)
    job = Job(
        setup.config, setup.task, learner, loader, None, recorder, Progress(),
        save=lambda _: None, stop_reason=lambda: None, total_steps=setup.total_steps,
    )  # fmt: skip
    recorder.end_startup()
    for record in train(job):
        if hasattr(record, "batch_index"):
            table.append({"attempt": 1, **vars(record)})
            yield record.loss


def image_config(folder, steps):
    for _ in make_shapes(folder / "data", CLASSES, BATCH * (steps + 4) // CLASSES, SIZE, val_per_class=1):
        pass
    return load_config({
        "device": "cpu",
        "data": {"path": str(folder / "data"), "view": "v", "eval_view": "v", "batch_size": BATCH, "workers": 1},
        "views": {"v": {"base": "train-64", "size": SIZE}}, "model": {"name": "resnet18", "width": 0.25},
        "train": {"epochs": 1, "lr": 0.01, "warmup_epochs": 0},
    }).config  # fmt: skip


def text_config(data):
    changes = {"data.path": data, "train.epochs": 1, "train.ema": None, "train.clip_norm": None}
    return load_config(Path(__file__).parents[1] / "recipes/multi30k-small-cpu.yaml", changes).config


def measure(steps, data):
    with tempfile.TemporaryDirectory() as name:
        setup = prepare_setup(text_config(data) if data else image_config(Path(name), steps))
        with (
            closing(setup.opened.open_source(setup.plan, setup.config.data, 1)) as one,
            closing(setup.opened.open_source(setup.plan, setup.config.data, 1)) as two,
        ):
            learner = build_learner(setup.task, setup.config, setup.device)
            loops = {
                "bare": bare_steps(setup, learner, one),
                "flatout": flatout_steps(setup, learner, two, Path(name)),
            }
            seconds = {"bare": [], "flatout": []}
            for number in range(steps + 3):
                for name_ in list(loops)[:: 1 if number % 2 else -1]:
                    started = time.perf_counter()
                    next(loops[name_])
                    if number >= 3:  # the first steps warm up allocators, and ours checks every gradient
                        seconds[name_].append(time.perf_counter() - started)
    return seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--data", help="folder of Multi30k: measure the translation task")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kind = "loop-overhead-translation" if options.data else "loop-overhead"
    out = options.out or Path(__file__).parent / f"results/{time.strftime('%Y-%m-%d')}-{kind}.md"
    torch.set_num_threads(2)
    keep_freed_memory()  # as `flatout train` does; here the bare loop gets the gain of it too
    seconds = {"bare": [], "flatout": []}
    for _ in range(options.rounds):
        for name, values in measure(options.steps, options.data).items():
            seconds[name] += values
    ratios = [ours / bare for ours, bare in zip(seconds["flatout"], seconds["bare"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    rows = "\n".join(
        f"| {name} | {1e3 * medians[name]:.2f} | {1e3 * min(values):.2f} | {1e3 * sum(values) / len(values):.2f} |"
        for name, values in seconds.items()
    )
    what = f"ResNet-18 width 0.25, batch {BATCH}, {SIZE} pixels"
    if options.data:
        what = "the Transformer and the batches of recipes/multi30k-small-cpu.yaml"
    text = f"""# Overhead of the training loop over a bare PyTorch loop

{time.strftime("%Y-%m-%d")}, commit {commit}, torch {torch.__version__}, 2 threads, {options.rounds} rounds of {options.steps} steps each in turns
({what}, CPU, shared noisy machine; freed memory is kept for the next step in both, as `flatout train` does).

    {" ".join(["python", *sys.argv])}

| loop | ms per step, median | best | mean |
|---|---|---|---|
{rows}

Ratio of the medians: **{medians["flatout"] / medians["bare"]:.3f}**; of neighbouring steps: median {middle:.3f}, quartiles {low:.3f} to {high:.3f};
of the best steps {min(seconds["flatout"]) / min(seconds["bare"]):.3f}.
"""
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
