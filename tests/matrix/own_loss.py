"""The user code of the feature `own loss`."""

from torch import Tensor
from torch.nn import functional as F


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.softmax(1) - F.one_hot(labels, outputs.shape[1])).square().sum(1)
