"""Image classification: cross-entropy with label smoothing, mixup and cutmix; top-1, top-5 and loss."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from flatout.config.schema import Config
from flatout.data.batch import Batch
from flatout.data.pixels.normalize import normalize
from flatout.data.pixels.views import View
from flatout.errors import ConfigError
from flatout.tasks.classification.models import build_model, model_is_own
from flatout.tasks.classification.own_code import (
    metric_sums,
    metric_values,
    open_loss,
    open_metrics,
    trial_images,
    try_loss,
    try_metrics,
    try_model,
)
from flatout.tasks.classification.resnet import DEPTHS, ResNet, block_count
from flatout.tasks.classification.resnet_extras import Extras, residual_scales
from flatout.tasks.protocol import Sums


@dataclass
class Inputs:
    """A batch on the device: uint8 images, labels; for mixing the partner's place, own share and box."""

    images: Tensor
    labels: Tensor
    partner: Tensor | None = None
    keep: Tensor | None = None
    box: Tensor | None = None
    scales: Tensor | None = None  # of each sample's residuals (stochastic depth)


_LEAST_SIDE_TO_JUDGE = 32  # pixels
TOP5_CLASSES = 6  # with fewer, one of five guesses is right whatever the model says


class Classification:
    """`Task` of images with one label each. What has no underscore is for tasks of one's own that derive from it."""

    output_names: tuple[str, ...] | None = None

    def __init__(
        self,
        config: Config,
        classes: int,
        view: View,
        eval_view: View,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        self._class_weights = None if class_weights is None else torch.from_numpy(class_weights)
        self.config = config
        self._classes = classes
        self.view = view
        self.eval_view = eval_view
        self._own_loss = open_loss(config.train)
        self._own_metrics = open_metrics(config.validate_.metrics)
        self._by_plane = False  # what fused layers read, and what is made fastest

    def build_model(self) -> nn.Module:
        model, checkpointing = self.config.model, self.config.train.checkpointing
        stem = model.stem if model.name in DEPTHS else "standard"  # others' models have their own
        extras = Extras(model.zero_gamma, model.blur_pool, model.squeeze_excite)
        return build_model(model.name, self._classes, stem, model.width, checkpointing, model.options, extras)

    @property
    def own_metrics(self) -> tuple[str, ...]:
        """Columns of metrics that are the user's own."""
        return tuple(self._own_metrics)

    def try_out(self, model: nn.Module, device: torch.device) -> None:
        """User code on a made-up batch: shapes and errors are found before anything is written."""
        users = model_is_own(self.config.model.name)
        if not users and self._own_loss is None and not self._own_metrics:
            return
        images = trial_images(self.view.side(0), device)
        logits = try_model(model, images, self._classes, self.config.model.name)
        if self._own_loss is not None:
            try_loss(self._own_loss, logits, self.config.train.loss)
        try_metrics(self._own_metrics, logits)

    def fuse_layers(self, model: nn.Module) -> None:
        if not isinstance(model, ResNet):
            raise ConfigError(
                f"train.kernels is fused, but the task {self.config.task} builds a {type(model).__name__} and fused "
                f"layers are for {', '.join(DEPTHS)}; use train.kernels=torch"
            )
        model.fused, self._by_plane = True, True

    def to_device(self, batch: Batch, device: torch.device) -> Inputs:
        inputs = on_device(batch, device)
        last, name = self.config.model.stochastic_depth, self.config.model.name
        if last:
            ids = batch.sample_ids.numpy()
            drawn = residual_scales(last, block_count(name), self.config.train.seed, batch.epoch, ids)
            inputs.scales = torch.from_numpy(drawn).to(device, non_blocking=True)
        return inputs

    def weight(self, inputs: Inputs) -> float:
        return len(inputs.labels)

    def filler(self, inputs: Inputs) -> Inputs:
        return Inputs(inputs.images.new_zeros(1, *inputs.images.shape[1:]), inputs.labels.new_zeros(1))

    def parts(self, inputs: Inputs, count: int) -> list[tuple[Inputs, float]]:
        total = len(inputs.labels)
        if count == 1:
            return [(inputs, 1.0)]
        # even cuts keep the pairs of mixup together
        bounds = [min(total, 2 * round(total * part / count / 2)) for part in range(count)] + [total]
        pieces = []
        for low, high in pairwise(bounds):
            if high > low:
                piece = Inputs(inputs.images[low:high], inputs.labels[low:high])
                if inputs.partner is not None and inputs.keep is not None and inputs.box is not None:
                    piece.partner = inputs.partner[low:high] - low
                    piece.keep, piece.box = inputs.keep[low:high], inputs.box[low:high]
                if inputs.scales is not None:
                    piece.scales = inputs.scales[low:high]
                pieces.append((piece, (high - low) / total))
        return pieces

    def harder(self, model: nn.Module, inputs: Inputs) -> Inputs:
        """Of each two neighbours the one with the larger loss; a last one without a neighbour stays.

        Ranks never cut between neighbours. Pictures are looked at at half of their side, where that is enough.
        """
        images = self.normalized(inputs.images, self.view)
        if min(images.shape[2:]) >= 2 * _LEAST_SIDE_TO_JUDGE:
            images = F.avg_pool2d(images, 2)
        losses = self.losses(model(images), inputs.labels)
        pairs = len(losses) // 2
        first = torch.arange(0, len(losses), 2, device=losses.device)
        second_is_harder = losses[1::2] > losses[: 2 * pairs : 2]
        chosen = first + F.pad(second_is_harder.long(), (0, len(losses) % 2))
        scales = None if inputs.scales is None else inputs.scales[chosen]
        return Inputs(inputs.images[chosen], inputs.labels[chosen], scales=scales)

    def loss(self, model: nn.Module, inputs: Inputs) -> Tensor:
        images = self.normalized(inputs.images, self.view)
        if inputs.partner is not None and inputs.keep is not None and inputs.box is not None:
            images = mixed(images, inputs.partner, inputs.keep, inputs.box)
        logits = model(images) if inputs.scales is None else model(images, inputs.scales)
        losses = self.losses(logits, inputs.labels)
        if inputs.partner is not None and inputs.keep is not None:
            losses = inputs.keep * losses + (1 - inputs.keep) * self.losses(logits, inputs.labels[inputs.partner])
        return losses.mean()

    def normalized(self, images: Tensor, view: View) -> Tensor:
        """uint8 pixels as the model takes them."""
        return normalize(images, view, channels_last=self.config.train.channels_last and not self._by_plane)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Training loss of each sample."""
        if self._own_loss is not None:
            losses = self._own_losses(logits, labels)
        else:
            smoothing = self.config.train.label_smoothing
            losses = F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)
        if self._class_weights is None:
            return losses
        # times the weight and not divided by the sum of weights: a sample counts the same in any batch, on any rank
        self._class_weights = self._class_weights.to(losses.device)
        return losses * self._class_weights[labels]

    def _own_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        assert self._own_loss is not None
        if isinstance(self._own_loss, nn.Module):
            self._own_loss.to(logits.device)  # what it holds besides parameters
        return self._own_loss(logits.float(), labels)

    def evaluate(self, model: nn.Module, inputs: Inputs) -> Sums:
        logits = model(self.normalized(inputs.images, self.eval_view)).float()
        top = logits.topk(min(5, logits.shape[1]), dim=1).indices.eq(inputs.labels[:, None])
        if self._own_loss is None:
            losses = F.cross_entropy(logits, inputs.labels, reduction="none")
        else:
            losses = self._own_losses(logits, inputs.labels)
        # summed in double on the host, which reads once: Apple's GPUs have no doubles
        first, any_of_five, losses = torch.stack([top[:, 0].float(), top.sum(1).float(), losses]).cpu()
        top1, top5 = first.sum().item(), any_of_five.sum().item()  # of 0 and 1: exact
        own = metric_sums(self._own_metrics, logits, inputs.labels)
        sums = {"samples": len(inputs.labels), "top1": top1, "top5": top5, "loss": float(losses.double().sum())}
        return sums | own

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def metrics(self, sums: Sums) -> dict[str, float]:
        count = max(1.0, sums["samples"])
        top5 = {"top5": sums["top5"] / count} if self._classes >= TOP5_CLASSES else {}
        own = metric_values(self._own_metrics, sums)
        return {"top1": sums["top1"] / count, **top5, "val_loss": sums["loss"] / count, **own}


def on_device(batch: Batch, device: torch.device) -> Inputs:
    """What a batch holds, there."""

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    inputs = Inputs(move(batch.images), move(batch.labels))
    if batch.mix is not None:
        inputs.partner, inputs.keep, inputs.box = (
            move(torch.from_numpy(array)) for array in (batch.mix.partner, batch.mix.keep, batch.mix.box)
        )
    return inputs


def mixed(images: Tensor, partner: Tensor, keep: Tensor, box: Tensor) -> Tensor:
    """Mixup where the box is empty, else cutmix: the partner's pixels inside the box."""
    rows = torch.arange(images.shape[2], device=images.device)[None, :, None]
    columns = torch.arange(images.shape[3], device=images.device)[None, None, :]
    x0, y0, x1, y1 = (box[:, k, None, None] for k in range(4))
    inside = (rows >= y0) & (rows < y1) & (columns >= x0) & (columns < x1)
    cut = (box[:, 2] > box[:, 0])[:, None, None]
    own = torch.where(cut, 1 - inside.to(images.dtype), keep[:, None, None].to(images.dtype))[:, None]
    return images * own + images[partner] * (1 - own)
