"""The baseline: DataLoader + Pillow, one image at a time, as in most training scripts.

`--variant draft` decodes JPEGs at the smallest scale that still covers the crop (Pillow's draft mode). As shipped there
are two: DataLoader with its defaults, and with what the tutorial sets.
"""

import random
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from contract import Job, every_epoch, run_peer, train_files
from peers.pillow_crops import random_resized_box
from peers.torch_samples import EndlessShuffle, pillow_sample
from PIL import Image
from torch.utils.data import DataLoader, Dataset

TUTORIAL_WORKERS = 2  # https://docs.pytorch.org/tutorials/beginner/blitz/cifar10_tutorial.html


def draft_sample(image: Image.Image, pixels: int) -> torch.Tensor:
    left, top, width, height = random_resized_box(*image.size)
    shrink = next((each for each in (8, 4, 2) if min(width, height) >= each * pixels), 1)
    image.draft("RGB", (image.width // shrink, image.height // shrink))
    box = [edge / shrink for edge in (left, top, left + width, top + height)]
    image = image.convert("RGB").resize((pixels, pixels), Image.Resampling.BILINEAR, box=tuple(box))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


class ImageFolder(Dataset):
    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.paths, self.labels = train_files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb") as stream:
            if self.job.variant == "draft":
                return draft_sample(Image.open(stream), self.job.pixels), self.labels[index]
            return pillow_sample(Image.open(stream), self.job), self.labels[index]


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = ImageFolder(job, folder)
    loader = DataLoader(dataset, job.batch, sampler=EndlessShuffle(len(dataset)), num_workers=job.workers)
    return (images for images, _ in loader)


def epochs(job: Job, folder: Path) -> Iterator[Iterable[torch.Tensor]]:
    """num_workers is 0 unless set: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader"""
    workers = {"num_workers": TUTORIAL_WORKERS} if job.variant == "tutorial" else {}
    return every_epoch(DataLoader(ImageFolder(job, folder), job.batch, shuffle=True, **workers), itemgetter(0))


if __name__ == "__main__":
    run_peer("plain", ("torch", "pillow"), batches, variants=("", "draft", "tutorial"), epochs=epochs)
