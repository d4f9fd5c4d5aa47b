"""What digests cost: the same batches with and without, in turns, by CPU time; and what opening a folder takes.

    python benchmarks/hashing.py [--rounds 40] [--files 200000] [--out FILE]

Each batch is prepared twice in a row, once each way, the order changing from batch to batch; the share is the median
over all pairs of (with - without) / without. `with` includes what the trainer does with the digests. Files are written
by this script, 64 x 64 pixels of about 2 kB and 500 x 400 of about 65 kB, and lie in the page cache.
"""

import argparse
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from flatout.config.schema import DataConfig
from flatout.data.loading import prepare as preparing
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.views import SHIPPED
from flatout.data.source.dataset import open_dataset
from flatout.data.source.pack_writer import PackOptions, write_pack

KINDS = {64: ((64, 64), 1024, "train-64", 256), 224: ((500, 400), 256, "train-224", 64)}  # files, samples, batch


def jpeg(number, size):
    """As hard to decode as a photograph: detail at every scale."""
    rng, (width, height) = np.random.default_rng(number), size
    image = np.zeros((height, width, 3))
    for cells, weight in ((4, 0.5), (16, 0.3), (64, 0.2)):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        image += weight * np.asarray(coarse)
    out = io.BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_images(root, size, count):
    for number in range(count):
        for split in ("train", "val")[: 1 if number >= 2 else 2]:
            path = root / split / "ab"[number % 2] / f"{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, size))


def opened(path):
    return open_dataset(DataConfig(path=str(path)))


def cpu_seconds(recipe, epoch, index, space, digests):
    preparing.DIGESTS = digests
    started = time.thread_time()
    made = prepare(recipe, epoch, index, space)
    if made.digested is not None:
        recipe.split.record(*made.digested)
    return time.thread_time() - started


def compare(path, view, batch, rounds, verified=True):
    split = opened(path).train
    recipe = BatchPlan(split, SHIPPED[view], seed=0, batch_size=batch)
    space = np.empty(recipe.shape(0), np.uint8)
    shares, without, epoch = [], [], 0
    for index in range(recipe.batches_per_epoch):  # not measured: memory, caches, what is verified once
        cpu_seconds(recipe, 0, index, space, True)
    while len(shares) < rounds * recipe.batches_per_epoch:
        for index in range(recipe.batches_per_epoch):
            split.origins.verified[:] = verified
            order = (True, False) if (epoch + index) % 2 else (False, True)
            taken = {each: cpu_seconds(recipe, epoch, index, space, each) for each in order}
            shares.append((taken[True] - taken[False]) / taken[False])
            without.append(taken[False])
        epoch += 1
    shares.sort()
    quarter = len(shares) // 4
    return statistics.median(without) / batch * 1e6, statistics.median(shares), shares[quarter], shares[-quarter - 1]


def rows(folder, rounds):
    for side, (size, count, view, batch) in KINDS.items():
        root = folder / f"photos-{side}"
        write_images(root, size, count)
        yield (side, "folder", *compare(root, view, batch, rounds))
        for mode in ("original", "decoded"):
            list(write_pack(opened(root), folder / f"{mode}-{side}", PackOptions(mode)))
        yield (side, "pack", *compare(folder / f"original-{side}", view, batch, rounds))
        yield (side, "decoded pack, first reading", *compare(folder / f"decoded-{side}", view, batch, rounds, False))
        yield (side, "decoded pack, from then on", *compare(folder / f"decoded-{side}", view, batch, rounds))


def starts(folder, files):
    """Seconds to open a folder of so many files."""
    root, data = folder / "many", b"x" * 100
    for number in range(files):
        path = root / "train" / f"{number % 200:03d}" / f"{number:06d}.jpg"
        if number < 200:
            path.parent.mkdir(parents=True)
            (root / "val" / path.parent.name).mkdir(parents=True)
            (root / "val" / path.parent.name / "0.jpg").write_bytes(data)
        path.write_bytes(data)
    taken = []
    for _ in range(4):
        started, cpu = time.perf_counter(), time.process_time()
        dataset = opened(root)
        taken.append((time.perf_counter() - started, time.process_time() - cpu))
        fingerprint = time.perf_counter()
        dataset.fingerprint  # noqa: B018 (what takes the time)
        taken[-1] += (time.perf_counter() - fingerprint,)
    return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--out")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    lines = [
        "# What digests cost", "",
        f"{time.strftime('%Y-%m-%d')}, commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}: `python benchmarks/hashing.py {' '.join(sys.argv[1:])}`", "",
        "The same batches with and without digests in turns, one thread, CPU time; median and quartiles of the pairs.", "",
        "| pixels | source | us a sample without | with digests | quartiles |", "|---|---|---|---|---|",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        for side, source, each, share, low, high in rows(Path(name), options.rounds):
            lines.append(
                f"| {side} | {source} | {each:.1f} | {100 * share:+.2f} % | {100 * low:+.2f} to {100 * high:+.2f} % |"
            )
            print(lines[-1], flush=True)
        if options.files:
            lines += [
                "",
                f"Opening a folder of {options.files:,} files (wall, CPU, then the fingerprint by names):",
                "",
            ]
            for wall, cpu, names in starts(Path(name), options.files):
                lines.append(f"- {wall:.2f} s, {cpu:.2f} s of CPU, {names:.2f} s")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        Path(options.out).write_text(text)


if __name__ == "__main__":
    main()
