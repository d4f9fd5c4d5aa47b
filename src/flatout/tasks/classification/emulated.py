"""Image classification on an emulated accelerator: what it would compute is its wait, and costs the CPU nothing."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flatout.config.schema import Config
from flatout.data.pixels.views import View
from flatout.tasks.classification.emulated_model import EmulatedModel
from flatout.tasks.classification.task import Classification, Inputs
from flatout.tasks.protocol import Sums


class EmulatedClassification(Classification):
    """The same batches and the sizes of the real model. Pixels are neither normalised nor mixed, and loss and metrics
    are those of a model that gives every class the same chance, whatever the labels and their smoothing."""

    def __init__(
        self,
        config: Config,
        classes: int,
        view: View,
        eval_view: View,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(config, classes, view, eval_view, class_weights)
        self._own_metrics = {}  # there is nothing that they could measure
        self._chance_loss = torch.tensor(math.log(classes))

    def build_model(self) -> nn.Module:
        pace, ranks_exchange = self.config.emulated, self.config.parallel.mode != "single"
        return EmulatedModel(
            super().build_model(),
            self._classes,
            pace.base_seconds,
            pace.seconds_per_sample,
            layered=ranks_exchange,
        )

    def try_out(self, model: nn.Module, device: torch.device) -> None:
        """Nothing of the user's is computed."""

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        logits: Tensor = model(inputs.images)
        if not logits.requires_grad:
            return self._chance_loss  # as it is: after a wait, with cold caches, an operation takes up to 0.05 ms
        return logits[0, 0] + self._chance_loss  # all logits are zero, and one of them has the whole graph

    def evaluate(self, model: nn.Module, inputs: Inputs) -> Sums:
        model(inputs.images)
        count, classes = len(inputs.labels), self._classes
        chance_of_five = min(5, classes) / classes
        return {
            "samples": count,
            "top1": count / classes,
            "top5": count * chance_of_five,
            "loss": count * math.log(classes),
        }
