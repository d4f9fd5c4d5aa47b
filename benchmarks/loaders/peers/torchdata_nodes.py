"""torchdata nodes: threads over batches, torchvision's decoder and v2 transforms (both free the GIL in part)."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import torch
from contract import Job, every_epoch, run_peer
from peers.torch_samples import EndlessShuffle
from peers.torchvision_v2 import TensorFolder
from torch.utils.data import RandomSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = TensorFolder(job, folder)
    torch.set_num_threads(1)  # the mapper's threads are the parallelism

    def load_batch(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = zip(*(dataset[index] for index in indices), strict=True)
        return torch.stack(images), torch.tensor(labels)

    node = Batcher(SamplerWrapper(EndlessShuffle(len(dataset.paths))), job.batch, drop_last=True)
    node = ParallelMapper(node, load_batch, num_workers=job.workers, method="thread", in_order=True)
    return (images for images, _ in Loader(Prefetcher(node, prefetch_factor=2)))


def epochs(job: Job, folder: Path) -> Iterator[Iterable[torch.Tensor]]:
    """Three threads over samples, as in https://pytorch.org/data/main/getting_started_with_torchdata_nodes.html"""
    dataset = TensorFolder(job, folder)
    node = SamplerWrapper(RandomSampler(range(len(dataset.paths))))
    node = ParallelMapper(node, map_fn=dataset.__getitem__, num_workers=3, method="thread")
    node = Mapper(Batcher(node, job.batch, drop_last=False), default_collate)
    return every_epoch(Loader(node), itemgetter(0))


if __name__ == "__main__":
    run_peer("torchdata-nodes", ("torchdata", "torch", "torchvision"), batches, epochs=epochs)
