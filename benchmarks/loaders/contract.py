"""What every peer shares: its command line, the conversion cache, the clock, the memory meter and the one line of JSON.

A peer is a module `peers/<name>.py`, run from this directory as `python -m peers.<name> --data FOLDER --work DIR ...`
(as a module, so that `peers/ffcv.py` does not hide the package `ffcv`). It hands `run_peer` two functions:
`convert(job, target)` writes the peer's own format once, and `batches(job, path)` opens the peer at its best setting and
yields image batches without end. `epochs(job, path)` is the peer as shipped: opened as its own documentation opens it (cited
there), with nothing set but the batch size; it yields one iterable of batches for each epoch.
"""

import argparse
import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TASK_PIXELS = {"rrc224": 224, "tiny64": 64}
TINY_PAD_PIXELS = 4
MIN_WARMUP_SECONDS = 1.5
MIN_MEASURED_BATCHES = 4
EPOCHS = 3

notes: list[str] = []  # what a loader says of its own choices; in the result


@dataclass(frozen=True)
class Job:
    """One measurement, as asked for on the command line."""

    data: Path
    """Folder with train/<class>/*.JPEG."""
    work: Path
    """Where converted data is kept between runs."""
    task: str
    """rrc224: random resized crop + flip; tiny64: flip + crop of the image padded by 4 pixels."""
    output: str
    """uint8: unnormalised; float32: normalised with ImageNet's mean and deviation."""
    batch: int
    workers: int
    seconds: float
    variant: str
    mode: str
    """window: at the best setting, an epoch's samples from the call that opens it, then a window of the warm loader;
    epochs: as shipped, three epochs from the call that opens it."""
    convert_only: bool
    """Stop after the conversion, so that a driver can do all conversions before the first measurement."""

    @property
    def pixels(self) -> int:
        return TASK_PIXELS[self.task]

    @property
    def is_float(self) -> bool:
        return self.output == "float32"


Convert = Callable[[Job, Path], None]
Batches = Callable[[Job, Path], Iterator[Any]]
Epochs = Callable[[Job, Path], Generator[Iterable[Any], None, None]]


def every_epoch(loader: Iterable[Any], images_of: Callable[[Any], Any]) -> Generator[Iterable[Any], None, None]:
    """Of a loader that is iterated once for each epoch; `images_of` takes the images out of its batch."""
    while True:
        yield map(images_of, loader)


def train_files(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels, in a fixed order."""
    names = sorted(entry.name for entry in (folder / "train").iterdir() if entry.is_dir())
    found = [
        (str(path), label)
        for label, name in enumerate(names)
        for path in sorted((folder / "train" / name).rglob("*.JPEG"))
    ]
    return [path for path, _ in found], [label for _, label in found]


def source_jpeg_quality(folder: Path, default: int) -> int:
    """The quality that make_photos.py chose, for peers that compress again; `default` for other folders."""
    about = folder / "about.json"
    return json.loads(about.read_text())["jpeg_quality"] if about.exists() else default


def parse_job(variants: tuple[str, ...]) -> Job:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--task", choices=sorted(TASK_PIXELS), required=True)
    parser.add_argument("--output", choices=["uint8", "float32"], required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--mode", choices=["window", "epochs"], default="window")
    parser.add_argument("--convert-only", action="store_true")
    return Job(**vars(parser.parse_args()))


def converted(job: Job, convert: Convert, name: str) -> tuple[Path, float]:
    """The converted data and the seconds its conversion took, now or in the run that made it."""
    target = job.work / f"{name}-{job.task}"
    receipt = target / "convert_seconds"
    if not receipt.exists():
        shutil.rmtree(target, ignore_errors=True)  # an interrupted conversion left no receipt
        target.mkdir(parents=True)
        started = time.perf_counter()
        convert(job, target)
        receipt.write_text(f"{time.perf_counter() - started:.2f}")
        print(f"{name}: converted {job.task} in {receipt.read_text()} s", flush=True)
    return target, float(receipt.read_text())


def stored_files(path: Path, read_from_folder: bool) -> list[Path]:
    if read_from_folder:
        return [Path(name) for name in train_files(path)[0]]
    others = ("convert_seconds", "val")  # the receipt, and the validation split that some formats bring along
    return [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(others)]


def warm_page_cache(files: list[Path]) -> None:
    buffer = memoryview(bytearray(1 << 22))
    for file in files:
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def process_tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def tree_cpu_seconds() -> float:
    """Of this process and its children, those that ended (and were waited for) included."""
    total = 0.0
    for process in process_tree():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # ended between the listing and the reading
        total += times.user + times.system + times.children_user + times.children_system
    return total


def tree_memory_bytes() -> tuple[int, int]:
    """(proportional set size, its part that is not a mapped file) of this process and its children."""
    pss = unreclaimable = 0
    for process in process_tree():
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue  # ended between the listing and the reading
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        pss += kilobytes["Pss"] * 1024
        unreclaimable += (kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"]) * 1024
    return pss, unreclaimable


def busy_cpu_seconds() -> float:
    """CPU seconds that the whole machine has spent, other tenants' stolen time included."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def check_batch(job: Job, images: Any) -> str:
    """Refuse a batch that is not what the task asks for; return its layout."""
    shape, dtype = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    count = min(len(images), job.batch) if job.mode == "epochs" else job.batch  # few samples, spread over workers
    layouts = {(count, 3, job.pixels, job.pixels): "NCHW", (count, job.pixels, job.pixels, 3): "NHWC"}
    if shape not in layouts or dtype != job.output:
        raise SystemExit(f"batch is {dtype} {shape}, wanted {job.output} as one of {list(layouts)}")
    low, high, mean = float(images.min()), float(images.max()), float(np.asarray(images[:8]).mean())
    if job.is_float:
        plausible = -2.2 < low < -1 and -1.5 < mean < 1.5 and 1 < high < 2.7
    else:
        plausible = low < 20 and 40 < mean < 220 and high > 235
    if not plausible:
        raise SystemExit(f"batch values run from {low} over a mean of {mean} to {high}: not {job.output} images")
    if layouts[shape] == "NCHW" and getattr(images, "is_contiguous", None) and not images.is_contiguous():
        return "NCHW, channels last"
    return layouts[shape]


def measure(job: Job, open_batches: Batches, path: Path) -> dict[str, Any]:
    """The first epoch's samples from the call that opens the loader, then images per second of the warm loader."""
    cpu_before, busy_before, started = tree_cpu_seconds(), busy_cpu_seconds(), time.perf_counter()
    source = iter(open_batches(job, path))
    first_batch = next(source)
    first_seconds, images, wanted = time.perf_counter() - started, len(first_batch), len(train_files(job.data)[0])
    while images + job.batch // 2 < wanted:  # loaders without end give whole batches: as many as an epoch has, rounded
        images += len(next(source))
    seconds = time.perf_counter() - started
    busy, cpu = busy_cpu_seconds() - busy_before, tree_cpu_seconds() - cpu_before
    opening = {
        "opening_per_second": round(images / seconds, 1),
        "opening_first_batch_ms": round(1e3 * first_seconds, 1),
        "opening_cpu_ms_per_image": round(cpu / images * 1e3, 4),
        "layout": check_batch(job, first_batch),
    }
    warm = measure_warm(job, source, warm_until=started + MIN_WARMUP_SECONDS)
    foreign = max(warm["foreign_cpu_share"], foreign_share(busy, cpu, seconds))
    return opening | warm | {"foreign_cpu_share": foreign}


def foreign_share(busy: float, own: float, seconds: float) -> float:
    """Of all cores, what other processes took."""
    return round(max(0.0, busy - own) / (seconds * os.cpu_count()), 3)


def measure_warm(job: Job, source: Iterator[Any], warm_until: float) -> dict[str, Any]:
    """Images per second between two batch arrivals, over whole rounds of the workers.

    Workers deliver in turn and often in pairs, so a window that is not a multiple of them would gain or lose a batch.
    Memory is read before and after the window, never inside it: reading it stalls the processes it reads.
    """
    while time.perf_counter() < warm_until:
        next(source)
    memory = [tree_memory_bytes()]
    for _ in range(job.workers):
        next(source)  # batches that were finished while memory was being read
    images = batches = 0
    cpu_before, busy_before, started = tree_cpu_seconds(), busy_cpu_seconds(), time.perf_counter()
    while time.perf_counter() - started < job.seconds or batches < MIN_MEASURED_BATCHES or batches % job.workers:
        images += len(next(source))
        batches += 1
    elapsed = time.perf_counter() - started
    busy, cpu = busy_cpu_seconds() - busy_before, tree_cpu_seconds() - cpu_before
    memory.append(tree_memory_bytes())
    return {
        "images_per_second": round(images / elapsed, 1),
        "cpu_ms_per_image": round(cpu / images * 1e3, 4),
        "foreign_cpu_share": foreign_share(busy, cpu, elapsed),
        "measured_seconds": round(elapsed, 2),
        "peak_rss_bytes": max(pss for pss, _ in memory),
        "peak_unreclaimable_bytes": max(anonymous for _, anonymous in memory),
        "memory_kind": "PSS of the process tree, read before and after the window",
    }


def measure_epochs(job: Job, open_epochs: Epochs, path: Path) -> dict[str, Any]:
    """Three epochs of a loader that nothing else slows down. Seconds count from the call that opens it: imports are no
    part of it, listing files and starting workers are."""
    ends, cpus, first_seconds, first_batch, samples = [], [], 0.0, None, 0
    cpu_before, busy_before, started = tree_cpu_seconds(), busy_cpu_seconds(), time.perf_counter()
    epochs = open_epochs(job, path)
    for batches in islice(epochs, EPOCHS):
        for images in batches:
            if first_batch is None:
                first_batch, first_seconds = images, time.perf_counter() - started
            samples += len(images)
        ends.append(time.perf_counter() - started)
        cpus.append(tree_cpu_seconds() - cpu_before)
    busy, each = busy_cpu_seconds() - busy_before, samples / EPOCHS
    epochs.close()
    return {
        "epoch_samples": round(each),
        "epoch0_per_second": round(each / ends[0], 1),
        "epoch1_per_second": round(each / (ends[1] - ends[0]), 1),
        "total_seconds": round(ends[-1], 4),
        "first_batch_ms": round(1e3 * first_seconds, 1),
        "cpu_us_epoch0": round(1e6 * cpus[0] / each, 2),
        "cpu_us_all": round(1e6 * cpus[-1] / samples, 2),
        "foreign_cpu_share": foreign_share(busy, cpus[-1], ends[-1]),
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "layout": check_batch(job, first_batch),
        "notes": "; ".join(notes),
    }


def run_peer(
    peer: str,
    packages: tuple[str, ...],
    batches: Batches,
    convert: Convert | None = None,
    variants: tuple[str, ...] = ("",),
    folder_variants: tuple[str, ...] = (),
    epochs: Epochs | None = None,
    converted_as: Mapping[str, str] | None = None,
) -> None:
    """Convert once if needed, warm up, measure, print one line of JSON, and leave without waiting for the workers.

    `folder_variants` are those of the variants that read the image folder and need no conversion; `converted_as` names
    the conversion of variants that share one.
    """
    job = parse_job(variants)
    name = (converted_as or {}).get(job.variant) or (f"{peer}-{job.variant}" if job.variant else peer)
    from_folder = convert is None or job.variant in folder_variants
    path, convert_seconds = (job.data, 0.0) if from_folder else converted(job, convert, name)
    if job.convert_only:
        return
    files = stored_files(path, from_folder)
    warm_page_cache(files)
    if job.mode == "epochs":
        assert epochs is not None, f"{peer} has no function for what it is as shipped"
        result = measure_epochs(job, epochs, path)
    else:
        result = measure(job, batches, path)
    about = {
        "peer": name,
        "task": job.task,
        "output": job.output,
        "version": ", ".join(f"{package} {version(package)}" for package in packages),
        "convert_seconds": convert_seconds,
        "bytes_per_image": round(sum(file.stat().st_size for file in files) / len(train_files(job.data)[0])),
    }
    print(json.dumps(about | result), flush=True)
    for process in process_tree()[1:]:
        process.kill()  # our own workers; a loader without end has no clean end
    os._exit(0)
