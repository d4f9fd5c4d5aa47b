"""The ceiling: a bare numpy gather of ready-made images from a decoded memory map. No decoding, no augmentation."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from contract import Job, run_peer, train_files
from peers.normalization import BatchNormalizer
from PIL import Image, ImageOps

SHUFFLE_SEED = 0


def convert(job: Job, target: Path) -> None:
    paths, _ = train_files(job.data)
    shape = (len(paths), job.pixels, job.pixels, 3)
    decoded = np.lib.format.open_memmap(target / "images.npy", mode="w+", dtype=np.uint8, shape=shape)
    for row, path in enumerate(paths):
        decoded[row] = ImageOps.fit(
            Image.open(path).convert("RGB"), (job.pixels, job.pixels), Image.Resampling.BILINEAR
        )
    decoded.flush()


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    decoded = np.load(path / "images.npy", mmap_mode="r")
    shape = (job.batch, job.pixels, job.pixels, 3)
    buffers = itertools.cycle([torch.empty(shape, dtype=torch.uint8) for _ in range(2)])
    torch.set_num_threads(1)  # the slices are the parallelism
    normalizer = BatchNormalizer(job.batch, job.pixels)
    order = np.random.default_rng(SHUFFLE_SEED)

    def fill(rows: np.ndarray, images: torch.Tensor, floats: torch.Tensor) -> None:
        np.take(decoded, rows, axis=0, out=images.numpy(), mode="clip")  # frees the GIL
        if job.is_float:
            normalizer.write(images, floats)

    with ThreadPoolExecutor(job.workers) as pool:
        while True:
            rows = order.integers(len(decoded), size=job.batch)
            images, floats = next(buffers), next(normalizer.buffers)
            slices = (
                np.array_split(rows, job.workers),
                images.tensor_split(job.workers),
                floats.tensor_split(job.workers),
            )
            list(pool.map(fill, *slices))
            yield (floats if job.is_float else images).permute(0, 3, 1, 2)


if __name__ == "__main__":
    run_peer("gather", ("numpy", "torch"), batches, convert)
