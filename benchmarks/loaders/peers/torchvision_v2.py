"""DataLoader + torchvision: decode_jpeg and the v2 transforms, on tensors, one image at a time."""

from collections.abc import Iterator
from pathlib import Path

import torch
from contract import IMAGENET_MEAN, IMAGENET_STD, TINY_PAD_PIXELS, Job, run_peer, train_files
from peers.torch_samples import EndlessShuffle
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2


def make_transform(job: Job) -> v2.Compose:
    crop = (
        v2.RandomResizedCrop(job.pixels) if job.task == "rrc224" else v2.RandomCrop(job.pixels, padding=TINY_PAD_PIXELS)
    )
    to_float = (
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)] if job.is_float else []
    )
    return v2.Compose([crop, v2.RandomHorizontalFlip(), *to_float])


class TensorFolder(Dataset):
    def __init__(self, job: Job, folder: Path) -> None:
        self.paths, self.labels = train_files(folder)
        self.transform = make_transform(job)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = decode_jpeg(read_file(self.paths[index]), ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = TensorFolder(job, folder)
    loader = DataLoader(dataset, job.batch, sampler=EndlessShuffle(len(dataset.paths)), num_workers=job.workers)
    return (images for images, _ in loader)


if __name__ == "__main__":
    run_peer("torchvision-v2", ("torch", "torchvision"), batches)
