"""Grain: its MapDataset over the image folder, Pillow transforms in numpy, two worker processes."""

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import grain.python as grain
import numpy as np
from contract import IMAGENET_MEAN, IMAGENET_STD, Job, run_peer, train_files
from peers.pillow_crops import augment_pillow
from PIL import Image

SCALE = (1 / (255 * np.array(IMAGENET_STD))).astype(np.float32)
SHIFT = (-np.array(IMAGENET_MEAN) / np.array(IMAGENET_STD)).astype(np.float32)


class LoadImage(grain.RandomMapTransform):
    def __init__(self, job: Job) -> None:
        self.job = job

    def random_map(self, sample: tuple[str, int], rng: np.random.Generator) -> tuple[np.ndarray, int]:
        path, label = sample
        random.seed(int(rng.integers(1 << 31)))  # Grain's workers start with equal generators
        with open(path, "rb") as stream:
            pixels = augment_pillow(Image.open(stream), self.job.task, self.job.pixels)
        return (pixels * SCALE + SHIFT if self.job.is_float else pixels), label


def batches(job: Job, folder: Path) -> Iterator[np.ndarray]:
    samples = list(zip(*train_files(folder), strict=True))
    dataset = grain.MapDataset.source(samples).seed(0).shuffle().repeat().random_map(LoadImage(job))
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    dataset = dataset.batch(job.batch, drop_remainder=True).to_iter_dataset(reading)
    loader = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=2))
    return (images for images, _ in loader)


def epochs(job: Job, folder: Path) -> Iterator[Iterable[np.ndarray]]:
    """Threads and buffer as to_iter_dataset sets them (16 and 500), shuffled anew for each epoch, no worker processes:
    https://google-grain.readthedocs.io/en/latest/tutorials/dataset_basic_tutorial.html"""
    dataset = grain.MapDataset.source(list(zip(*train_files(folder), strict=True)))
    for epoch in itertools.count():
        loaded = dataset.seed(epoch).shuffle().random_map(LoadImage(job)).batch(job.batch)
        yield (images for images, _ in loaded.to_iter_dataset())


if __name__ == "__main__":
    run_peer("grain", ("grain", "numpy", "pillow"), batches, epochs=epochs)
