"""NVIDIA DALI, CPU pipeline: its fused decode-and-random-crop, then resize, flip and normalise."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from contract import IMAGENET_MEAN, IMAGENET_STD, TINY_PAD_PIXELS, Job, every_epoch, run_peer, train_files
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy


@pipeline_def(enable_conditionals=False)
def image_pipeline(job: Job, files: list[str], labels: list[int]):
    jpegs, labels = fn.readers.file(files=files, labels=labels, random_shuffle=True, name="reader")
    if job.task == "rrc224":
        images = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[job.pixels, job.pixels], interp_type=types.INTERP_LINEAR)
    else:
        images = fn.decoders.image(jpegs)
        reach = TINY_PAD_PIXELS + 0.49  # the cast rounds to the nearest pixel
        start = fn.cast(fn.random.uniform(range=[-reach, reach], shape=[2]), dtype=types.INT32)
        images = fn.slice(
            images, start, [job.pixels, job.pixels], axes=[0, 1], out_of_bounds_policy="pad", fill_values=0
        )
    mirror = fn.random.coin_flip()
    if not job.is_float:
        return fn.flip(images, horizontal=mirror), labels
    mean, std = [255 * value for value in IMAGENET_MEAN], [255 * value for value in IMAGENET_STD]
    return fn.crop_mirror_normalize(
        images, mirror=mirror, mean=mean, std=std, dtype=types.FLOAT, output_layout="CHW"
    ), labels


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    files, labels = train_files(folder)
    pipeline = image_pipeline(job, files, labels, batch_size=job.batch, num_threads=job.workers, device_id=None, seed=0)
    iterator = DALIGenericIterator(pipeline, ["images", "labels"], size=-1)  # -1: never ends
    return (batch[0]["images"] for batch in iterator)


def epochs(job: Job, folder: Path) -> Iterator[Iterable[torch.Tensor]]:
    """Four threads, a named reader and automatic reset, as in "DALI in action" of the first page of its documentation:
    https://docs.nvidia.com/deeplearning/dali/user-guide/docs/index.html"""
    files, labels = train_files(folder)
    pipeline = image_pipeline(job, files, labels, batch_size=job.batch, num_threads=4, device_id=None)
    loader = DALIGenericIterator(
        pipeline, ["images", "labels"], reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
    )
    return every_epoch(loader, lambda batch: batch[0]["images"])


if __name__ == "__main__":
    run_peer("dali", ("nvidia-dali-cuda130",), batches, epochs=epochs)
