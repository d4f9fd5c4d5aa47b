"""LitData: chunks of the original JPEG bytes, decoded by torchvision, v2 transforms, StreamingDataLoader."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import torch
from contract import Job, every_epoch, run_peer, train_files
from litdata import ParallelStreamingDataset, StreamingDataLoader, StreamingDataset, optimize
from peers.torchvision_v2 import make_transform
from PIL import Image


def read_sample(path_and_label: tuple[str, int]) -> dict:
    path, label = path_and_label
    return {"image": Image.open(path), "label": label}  # an opened JPEG is stored as its file's bytes


def convert(job: Job, target: Path) -> None:
    samples = list(zip(*train_files(job.data), strict=True))
    optimize(read_sample, samples, str(target), chunk_bytes="64MB", num_workers=job.workers, reorder_files=False)


class TransformedImages(StreamingDataset):
    def __init__(self, job: Job, path: Path) -> None:
        super().__init__(str(path), shuffle=True, drop_last=True)
        self.augment = make_transform(job)

    def __getitem__(self, index) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return self.augment(sample["image"].expand(3, -1, -1)), sample["label"]  # grey images have one channel


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    dataset = ParallelStreamingDataset([TransformedImages(job, path)], length=float("inf"))
    loader = StreamingDataLoader(dataset, batch_size=job.batch, num_workers=job.workers, drop_last=True)
    return (images for ((images, _),) in loader)


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """shuffle and drop_last as in https://lightning.ai/docs/litdata/quick-start, no workers unless set"""
    return every_epoch(StreamingDataLoader(TransformedImages(job, path), batch_size=job.batch), itemgetter(0))


if __name__ == "__main__":
    run_peer("litdata", ("litdata", "torch", "torchvision"), batches, convert, epochs=epochs)
