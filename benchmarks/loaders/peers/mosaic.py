"""Mosaic streaming: MDS shards of the original JPEG bytes, Pillow transforms, DataLoader."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import torch
from contract import Job, every_epoch, run_peer, train_files
from peers.torch_samples import pillow_sample
from PIL import Image
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

PASSES_PER_EPOCH = 50


def convert(job: Job, target: Path) -> None:
    with MDSWriter(out=str(target), columns={"image": "jpeg", "label": "int"}) as writer:
        for path, label in zip(*train_files(job.data), strict=True):
            writer.write({"image": Image.open(path), "label": label})


class PillowImages(StreamingDataset):
    def __init__(self, job: Job, path: Path) -> None:
        streams = [Stream(local=str(path), repeat=1 if job.mode == "epochs" else PASSES_PER_EPOCH)]
        super().__init__(streams=streams, shuffle=True, batch_size=job.batch, num_canonical_nodes=1)
        self.job = job

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return pillow_sample(sample["image"], self.job), sample["label"]


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    clean_stale_shared_memory()  # a killed run leaves its segments behind
    loader = DataLoader(PillowImages(job, path), job.batch, num_workers=job.workers, drop_last=True)
    return (images for images, _ in loader)


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """A DataLoader with the batch size alone:
    https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/quick_start.html"""
    clean_stale_shared_memory()
    return every_epoch(DataLoader(PillowImages(job, path), batch_size=job.batch), itemgetter(0))


if __name__ == "__main__":
    run_peer("mosaic", ("mosaicml-streaming", "torch", "pillow"), batches, convert, epochs=epochs)
