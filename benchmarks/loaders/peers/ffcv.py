"""FFCV, its JPEG mode (`--variant jpeg`) and its decoded mode (`--variant raw`), data held in the page cache."""

import os
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from contract import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    TINY_PAD_PIXELS,
    Job,
    every_epoch,
    run_peer,
    source_jpeg_quality,
    train_files,
)
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

PASSES_PER_EPOCH = 50  # long epochs: FFCV starts its threads anew for each
TINY_JPEG_QUALITY = 75  # FFCV compresses again; 75 gives about the source's bytes per image


class PillowFolder:
    def __init__(self, folder: Path) -> None:
        self.paths, self.labels = train_files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self.paths[index]).convert("RGB"), self.labels[index]


def convert(job: Job, target: Path) -> None:
    mode = {"jpeg": "jpg", "raw": "raw"}[job.variant]
    image = RGBImageField(write_mode=mode, jpeg_quality=source_jpeg_quality(job.data, default=TINY_JPEG_QUALITY))
    writer = DatasetWriter(str(target / "train.beton"), {"image": image, "label": IntField()}, num_workers=job.workers)
    writer.from_indexed_dataset(PillowFolder(job.data))


def image_operations(job: Job) -> list:
    if job.task == "rrc224":
        head = [RandomResizedCropRGBImageDecoder((job.pixels, job.pixels)), RandomHorizontalFlip()]
    else:
        head = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=TINY_PAD_PIXELS)]
    mean, std = 255 * np.array(IMAGENET_MEAN), 255 * np.array(IMAGENET_STD)
    normalize = [NormalizeImage(mean, std, np.float32)] if job.is_float else []
    return [*head, *normalize, ToTensor(), ToTorchImage()]


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    loader = Loader(
        str(path / "train.beton"),
        batch_size=job.batch,
        num_workers=job.workers,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(len(train_files(job.data)[0])), PASSES_PER_EPOCH),
        drop_last=True,
        pipelines={"image": image_operations(job), "label": [IntDecoder(), ToTensor()]},
    )
    while True:
        for images, _ in loader:
            yield images


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """One worker for each core unless set, os_cache unless set; the order of https://docs.ffcv.io/quickstart.html"""
    pipelines = {"image": image_operations(job), "label": [IntDecoder(), ToTensor()]}
    loader = Loader(str(path / "train.beton"), batch_size=job.batch, order=OrderOption.RANDOM, pipelines=pipelines)
    return every_epoch(loader, itemgetter(0))


if __name__ == "__main__":
    os.environ.setdefault("NUMBA_NUM_THREADS", "2")
    run_peer("ffcv", ("ffcv", "torch"), batches, convert, variants=("jpeg", "raw"), epochs=epochs)
