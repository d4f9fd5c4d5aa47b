"""The baseline: DataLoader + Pillow, one image at a time, as in most training scripts."""

from collections.abc import Iterator
from pathlib import Path

import torch
from contract import Job, run_peer, train_files
from peers.torch_samples import EndlessShuffle, pillow_sample
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset):
    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.paths, self.labels = train_files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb") as stream:
            return pillow_sample(Image.open(stream), self.job), self.labels[index]


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = ImageFolder(job, folder)
    loader = DataLoader(dataset, job.batch, sampler=EndlessShuffle(len(dataset)), num_workers=job.workers)
    return (images for images, _ in loader)


if __name__ == "__main__":
    run_peer("plain", ("torch", "pillow"), batches)
