"""What several ranks know of one global batch: gathered numbers by rank, waited for where they are needed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flatout.data.batch import AnyBatch


@dataclass(frozen=True)
class GatheredBatch:
    """What the ranks told each other about one global batch; reading a property waits for their answer.

    Each row is one rank's: weight, samples, wants to stop, unusable samples.
    """

    rows: Callable[[], list[list[float]]]
    rank: int
    batch: AnyBatch
    unusable: Callable[[], set[int]]
    """Asks all ranks for the ids of the samples they could not use; called only where there are any."""

    @property
    def samples(self) -> int:
        """Of the global batch, without the unusable ones."""
        return int(sum(row[1] for row in self.rows()))

    @property
    def weight(self) -> float:
        """What all ranks' parts of the batch weigh together: of images, samples that are trained on."""
        return sum(row[0] for row in self.rows())

    @property
    def scale(self) -> float:
        """Factor on this rank's mean loss that makes the mean over ranks the mean over the global batch."""
        weights = [row[0] for row in self.rows()]
        return weights[self.rank] / sum(weights) * len(weights)

    @property
    def equal_parts(self) -> bool:
        """Whether every rank has as many samples."""
        return len({row[1] for row in self.rows()}) == 1

    @property
    def stop(self) -> bool:
        return any(row[2] for row in self.rows())

    @property
    def ids(self) -> Tensor:
        """Of those samples, in the order of the batch."""
        whole = self.batch.whole_ids
        assert whole is not None, "a source of several ranks says which samples the whole batch has"
        if not any(row[3] for row in self.rows()):
            return whole
        unusable = self.unusable()
        return torch.tensor([each for each in whole.tolist() if each not in unusable], dtype=torch.int64)
