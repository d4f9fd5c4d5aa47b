"""Hugging Face datasets: an Arrow table of the original JPEG bytes, Pillow transforms, DataLoader."""

import shutil
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

import torch
from contract import Job, every_epoch, run_peer, train_files
from datasets import Dataset, Image, load_from_disk
from peers.torch_samples import EndlessShuffle, pillow_sample
from torch.utils.data import DataLoader


def convert(job: Job, target: Path) -> None:
    paths, labels = train_files(job.data)

    def samples() -> Iterator[dict]:
        for path, label in zip(paths, labels, strict=True):
            yield {"image": {"bytes": Path(path).read_bytes(), "path": None}, "label": label}

    dataset = Dataset.from_generator(samples, cache_dir=str(target / "cache"))
    dataset.cast_column("image", Image()).save_to_disk(str(target / "table"))
    shutil.rmtree(target / "cache")


def open_table(job: Job, path: Path) -> Dataset:
    dataset = load_from_disk(str(path / "table"))

    def augment(rows: dict) -> dict:
        return {"image": [pillow_sample(image, job) for image in rows["image"]], "label": rows["label"]}

    dataset.set_transform(augment)
    return dataset


def batches(job: Job, path: Path) -> Iterator[torch.Tensor]:
    dataset = open_table(job, path)
    loader = DataLoader(dataset, job.batch, sampler=EndlessShuffle(len(dataset)), num_workers=job.workers)
    return (batch["image"] for batch in loader)


def epochs(job: Job, path: Path) -> Iterator[Iterable[torch.Tensor]]:
    """A DataLoader with nothing set but the batch size, as in https://huggingface.co/docs/datasets/use_with_pytorch"""
    return every_epoch(DataLoader(open_table(job, path), job.batch, shuffle=True), itemgetter("image"))


if __name__ == "__main__":
    run_peer("hf-datasets", ("datasets", "torch", "pillow"), batches, convert, epochs=epochs)
