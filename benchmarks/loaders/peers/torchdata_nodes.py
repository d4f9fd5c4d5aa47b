"""torchdata nodes: threads over batches, torchvision's decoder and v2 transforms (both free the GIL in part)."""

from collections.abc import Iterator
from pathlib import Path

import torch
from contract import Job, run_peer
from peers.torch_samples import EndlessShuffle
from peers.torchvision_v2 import TensorFolder
from torchdata.nodes import Batcher, Loader, ParallelMapper, Prefetcher, SamplerWrapper


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = TensorFolder(job, folder)
    torch.set_num_threads(1)  # the mapper's threads are the parallelism

    def load_batch(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = zip(*(dataset[index] for index in indices), strict=True)
        return torch.stack(images), torch.tensor(labels)

    node = Batcher(SamplerWrapper(EndlessShuffle(len(dataset.paths))), job.batch, drop_last=True)
    node = ParallelMapper(node, load_batch, num_workers=job.workers, method="thread", in_order=True)
    return (images for images, _ in Loader(Prefetcher(node, prefetch_factor=2)))


if __name__ == "__main__":
    run_peer("torchdata-nodes", ("torchdata", "torch", "torchvision"), batches)
