"""SPDL: its thread pipeline over FFmpeg's decoder and filters, one call per batch, normalised by torch."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import spdl.io
import torch
from contract import TINY_PAD_PIXELS, Job, every_epoch, run_peer, train_files
from peers.normalization import BatchNormalizer
from peers.pillow_crops import random_resized_box
from peers.torch_samples import EndlessShuffle
from spdl.dataloader import DataLoader
from spdl.pipeline import PipelineBuilder

PHOTO_PIXELS = (500, 375)  # the filter is written before the image is opened; the crop needs its size


def random_filter(job: Job) -> str:
    if job.task == "rrc224":
        left, top, width, height = random_resized_box(*PHOTO_PIXELS)
        steps = [f"crop={width}:{height}:{left}:{top}", f"scale={job.pixels}:{job.pixels}:flags=bilinear"]
    else:
        pad, padded = TINY_PAD_PIXELS, job.pixels + 2 * TINY_PAD_PIXELS
        left, top = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
        steps = [f"pad={padded}:{padded}:{pad}:{pad}", f"crop={job.pixels}:{job.pixels}:{left}:{top}"]
    if random.random() < 0.5:
        steps.append("hflip")
    return ",".join([*steps, "format=pix_fmts=rgb24"])


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    paths, labels = train_files(folder)
    torch.set_num_threads(1)  # the pipeline's threads are the parallelism
    normalize = BatchNormalizer(job.batch, job.pixels)

    def load_batch(indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        packets = [spdl.io.demux_image(paths[i]) for i in indices]
        frames = [spdl.io.decode_packets(packet, filter_desc=random_filter(job)) for packet in packets]
        return spdl.io.to_torch(spdl.io.convert_frames(frames)), torch.tensor([labels[i] for i in indices])

    builder = PipelineBuilder().add_source(EndlessShuffle(len(paths))).aggregate(job.batch)
    pipeline = (
        builder.pipe(load_batch, concurrency=job.workers).add_sink(2).build(num_threads=job.workers, max_failures=0)
    )
    with pipeline.auto_stop():
        for images_nhwc, _ in pipeline:
            yield normalize(images_nhwc) if job.is_float else images_nhwc.permute(0, 3, 1, 2)


def epochs(job: Job, folder: Path) -> Iterator[Iterable[torch.Tensor]]:
    """Its DataLoader with the threads and buffers it has unless set, decoding as its own example does:
    https://facebookresearch.github.io/spdl/main/generated/spdl.dataloader.DataLoader.html"""
    paths = train_files(folder)[0]

    def decode(path: str) -> spdl.io.ImageFrames:
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=random_filter(job))

    def batchify(frames: list[spdl.io.ImageFrames]) -> torch.Tensor:
        return spdl.io.to_torch(spdl.io.convert_frames(frames))

    class Shuffled:
        def __iter__(self) -> Iterator[str]:
            return iter(random.sample(paths, len(paths)))

    loader = DataLoader(Shuffled(), preprocessor=decode, batch_size=job.batch, aggregator=batchify)
    return every_epoch(loader, lambda images_nhwc: images_nhwc.permute(0, 3, 1, 2))


if __name__ == "__main__":
    run_peer("spdl", ("spdl", "torch"), batches, epochs=epochs)
