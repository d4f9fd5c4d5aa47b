"""DataLoader + simplejpeg + OpenCV, tuned by hand: workers make whole uint8 batches, the main process normalises."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from contract import TINY_PAD_PIXELS, Job, run_peer, train_files
from peers.normalization import BatchNormalizer
from peers.pillow_crops import random_resized_box
from peers.torch_samples import EndlessShuffle
from torch.utils.data import BatchSampler, DataLoader, Dataset


def decode(data: bytes, min_height: int = 0, min_width: int = 0) -> np.ndarray:
    return simplejpeg.decode_jpeg(
        data, "RGB", fastdct=True, fastupsample=True, min_height=min_height, min_width=min_width
    )


def crop_224(data: bytes, out: np.ndarray) -> None:
    """Decode at the smallest scale that still covers the crop with `out` pixels, then cut and resize."""
    height, width, _, _ = simplejpeg.decode_jpeg_header(data)
    left, top, crop_width, crop_height = random_resized_box(width, height)
    pixels = out.shape[0]
    image = decode(data, math.ceil(height * pixels / crop_height), math.ceil(width * pixels / crop_width))
    scale_y, scale_x = image.shape[0] / height, image.shape[1] / width
    top, bottom = int(top * scale_y), int((top + crop_height) * scale_y)
    left, right = int(left * scale_x), int((left + crop_width) * scale_x)
    cv2.resize(image[top:bottom, left:right], (pixels, pixels), dst=out, interpolation=cv2.INTER_LINEAR)


def crop_64(data: bytes, out: np.ndarray) -> None:
    pixels, pad = out.shape[0], TINY_PAD_PIXELS
    image = decode(data)
    dy, dx = random.randint(-pad, pad), random.randint(-pad, pad)
    out[max(0, dy) : pixels + min(0, dy), max(0, dx) : pixels + min(0, dx)] = (
        image[max(0, -dy) : pixels - max(0, dy), max(0, -dx) : pixels - max(0, dx)]
    )  # fmt: skip


class BatchedFolder(Dataset):
    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.paths, labels = train_files(folder)
        self.labels = np.array(labels)

    def __getitem__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        job = self.job
        images = np.zeros((len(indices), job.pixels, job.pixels, 3), np.uint8)
        crop = crop_224 if job.task == "rrc224" else crop_64
        for image, index in zip(images, indices, strict=True):
            with open(self.paths[index], "rb", buffering=0) as stream:
                crop(stream.read(), image)
            if random.random() < 0.5:
                image[:] = image[:, ::-1]
        return torch.from_numpy(images), torch.from_numpy(self.labels[indices])


def use_one_thread(_worker: int) -> None:
    cv2.setNumThreads(0)


def batches(job: Job, folder: Path) -> Iterator[torch.Tensor]:
    dataset = BatchedFolder(job, folder)
    sampler = BatchSampler(EndlessShuffle(len(dataset.paths)), job.batch, drop_last=True)
    loader = DataLoader(
        dataset, batch_size=None, sampler=sampler, num_workers=job.workers, worker_init_fn=use_one_thread
    )
    torch.set_num_threads(1)  # both cores belong to the workers; a second thread here mostly spins
    normalize = BatchNormalizer(job.batch, job.pixels)
    for images_nhwc, _ in loader:
        yield normalize(images_nhwc) if job.is_float else images_nhwc.permute(0, 3, 1, 2)  # channels last, no copy


if __name__ == "__main__":
    run_peer("handtuned", ("torch", "simplejpeg", "opencv-python-headless"), batches)
