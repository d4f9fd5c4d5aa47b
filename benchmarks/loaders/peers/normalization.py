"""Normalising a whole uint8 batch to float32, as fast as torch does it on a CPU."""

import itertools

import torch
from contract import IMAGENET_MEAN, IMAGENET_STD


class BatchNormalizer:
    """Writes into two buffers in turn: touching 154 MB of fresh memory per batch costs more than the arithmetic.

    The channel constants are repeated over a row of pixels. Broadcast over channels-last memory, torch's inner loop
    would be three elements long and eleven times slower (1.2 against 0.11 ms per 224-pixel image).
    """

    def __init__(self, batch: int, pixels: int) -> None:
        self.scale = (1 / (255 * torch.tensor(IMAGENET_STD))).repeat(pixels)
        self.shift = -(torch.tensor(IMAGENET_MEAN) / torch.tensor(IMAGENET_STD)).repeat(pixels)
        self.buffers = itertools.cycle([torch.empty(batch, pixels, pixels, 3) for _ in range(2)])

    def write(self, images_nhwc: torch.Tensor, out_nhwc: torch.Tensor) -> None:
        rows = out_nhwc.view(-1, self.scale.numel())
        rows.copy_(images_nhwc.reshape(rows.shape))
        torch.addcmul(self.shift, rows, self.scale, out=rows)

    def __call__(self, images_nhwc: torch.Tensor) -> torch.Tensor:
        """NHWC uint8 to NCHW float32 in channels-last memory, valid until the next call but one."""
        out = next(self.buffers)
        self.write(images_nhwc, out)
        return out.permute(0, 3, 1, 2)
