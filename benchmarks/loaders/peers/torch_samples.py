"""What the DataLoader peers share: an endless shuffled sampler, and one Pillow image as a tensor."""

import torch
from contract import IMAGENET_MEAN, IMAGENET_STD, Job
from peers.pillow_crops import augment_pillow
from PIL import Image

MEAN_LEVELS = 255 * torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
STD_LEVELS = 255 * torch.tensor(IMAGENET_STD).view(3, 1, 1)


def pillow_sample(image: Image.Image, job: Job) -> torch.Tensor:
    """One augmented image as CHW: uint8, or float32 normalised, as ToTensor and Normalize do it."""
    pixels_hwc = augment_pillow(image, job.task, job.pixels)
    tensor = torch.from_numpy(pixels_hwc.copy()).permute(2, 0, 1).contiguous()
    return tensor.to(torch.float32).sub_(MEAN_LEVELS).div_(STD_LEVELS) if job.is_float else tensor


class EndlessShuffle(torch.utils.data.Sampler):
    """Shuffled indices, pass after pass, so that no peer pays for an epoch's end (real epochs are 300 times longer)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self):
        while True:
            yield from torch.randperm(self.length).tolist()
