"""Test-time augmentation: a picture is looked at several times, and the model's chances for each class are averaged.

It costs as many forward passes as there are looks and trains nothing: its figures have names of their own and never
stand for those of the model.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_SHIFT = 16  # of the side: as far as a padded crop of training goes


def _mirrored(images: Tensor) -> Iterator[Tensor]:
    yield images
    yield images.flip(3)


def _shifted(images: Tensor) -> Iterator[Tensor]:
    """The middle and the four corners of a picture that is continued by its own mirror image, each both ways round."""
    height, width = images.shape[2:]
    far = max(1, min(height, width) // _SHIFT)
    wide = F.pad(images, (far, far, far, far), mode="reflect")
    for top, left in ((far, far), (0, 0), (0, 2 * far), (2 * far, 0), (2 * far, 2 * far)):
        yield from _mirrored(wide[:, :, top : top + height, left : left + width])


LOOKS: dict[str, Callable[[Tensor], Iterator[Tensor]]] = {"flip": _mirrored, "ten crops": _shifted}


class SeveralLooks(nn.Module):
    """Logarithms of the mean chances over the looks, which are logits too: who asks need not know."""

    def __init__(self, model: nn.Module, looks: Callable[[Tensor], Iterator[Tensor]]) -> None:
        super().__init__()
        self._inner = [model]  # not as a child: its weights stay where they are
        self._looks = looks

    def forward(self, images: Tensor) -> Tensor:
        chances = [self._inner[0](each).float().log_softmax(1) for each in self._looks(images)]
        return torch.stack(chances).logsumexp(0) - math.log(len(chances))
