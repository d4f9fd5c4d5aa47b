"""WebDataset: tar shards, Pillow decoding and transforms in the workers."""

import io
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
import webdataset as wds
from contract import Job, every_epoch, run_peer, train_files
from peers.torch_samples import pillow_sample
from PIL import Image

SHARDS = 16
SHUFFLE_SAMPLES = 1000


def convert(job: Job, target: Path) -> None:
    paths, labels = train_files(job.data)
    samples_per_shard = -(-len(paths) // SHARDS)
    with wds.ShardWriter(str(target / "train-%03d.tar"), maxcount=samples_per_shard, verbose=0) as writer:
        for index in torch.randperm(len(paths)).tolist():  # shards must not be one class each
            writer.write({"__key__": f"{index:08d}", "jpg": Path(paths[index]).read_bytes(), "cls": labels[index]})


def decode_sample(job: Job, sample: tuple[bytes, bytes]) -> tuple[torch.Tensor, int]:
    jpeg, label = sample
    return pillow_sample(Image.open(io.BytesIO(jpeg)), job), int(label)


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    shards = sorted(str(file) for file in path.glob("*.tar"))
    dataset = (
        wds.WebDataset(shards, shardshuffle=SHARDS, resampled=False)
        .repeat()
        .shuffle(SHUFFLE_SAMPLES)
        .to_tuple("jpg", "cls")
        .map(partial(decode_sample, job))
    )
    # batched by the DataLoader, which stacks straight into shared memory; wds's own `batched` costs one copy more
    loader = wds.WebLoader(dataset, batch_size=job.batch, num_workers=job.workers)
    return (images for images, _ in loader)


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """Four workers and a shuffle of 1000, as in https://webdataset.github.io/webdataset/gettingstarted/"""
    shards = sorted(str(file) for file in path.glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=SHARDS).shuffle(1000).to_tuple("jpg", "cls")
    loader = torch.utils.data.DataLoader(dataset.map(partial(decode_sample, job)), num_workers=4, batch_size=job.batch)
    return every_epoch(loader, itemgetter(0))


if __name__ == "__main__":
    run_peer("webdataset", ("webdataset", "torch", "pillow"), batches, convert, epochs=epochs)
