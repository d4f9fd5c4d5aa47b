"""ResNet-18, -34 and -50, with torchvision's parameter names so that published weights load.

Two changes against 2015: the stride of a bottleneck sits in its 3x3 convolution ("v1.5"), and the last norm of every
residual starts at zero (unless `Extras` say otherwise), so that a new network begins as the identity and bears a high
learning rate.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from flatout.tasks.classification import fused
from flatout.tasks.classification.resnet_extras import Blur, BlurredConv, Extras, SqueezeExcite, StridedConv

Stem = Literal["standard", "small", "patch"]


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1, blurred: bool = False) -> nn.Conv2d:
    if blurred and stride > 1:
        return BlurredConv(inputs, outputs, kernel, stride)
    return (StridedConv if stride > 1 else nn.Conv2d)(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, blurred: bool) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride, blurred), nn.BatchNorm2d(outputs))


def _joined(residual: Tensor, shortcut: Tensor, scale: Tensor | None) -> Tensor:
    """`scale` has a factor of each sample (stochastic depth)."""
    return residual + shortcut if scale is None else residual * scale[:, None, None, None].to(residual.dtype) + shortcut


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, channels: int, stride: int, extras: Extras) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, channels, 3, stride, extras.blur_pool)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, channels, stride, extras.blur_pool)
        self.se = SqueezeExcite(channels) if extras.squeeze_excite else nn.Identity()

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2

    @property
    def layers(self) -> list[fused.Layer]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2)]

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(_joined(self.se(self.bn2(self.conv2(x))), shortcut, scale))
        return out


class Bottleneck(nn.Module):
    """1x1 down, 3x3 (with the stride), 1x1 up by four."""

    expansion = 4

    def __init__(self, inputs: int, channels: int, stride: int, extras: Extras) -> None:
        super().__init__()
        outputs = channels * self.expansion
        self.conv1 = _conv(inputs, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, stride, extras.blur_pool)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv(channels, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride, extras.blur_pool)
        self.se = SqueezeExcite(outputs) if extras.squeeze_excite else nn.Identity()

    @property
    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3

    @property
    def layers(self) -> list[fused.Layer]:
        return [(self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)]

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        out: Tensor = self.relu(_joined(self.se(self.bn3(self.conv3(x))), shortcut, scale))
        return out


Block = type[BasicBlock] | type[Bottleneck]

DEPTHS: dict[str, tuple[Block, tuple[int, int, int, int]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """Build it with `resnet()`. Set `checkpointing` to recompute each block in backward instead of keeping it, and
    `fused` to compute by compiled code what it can (see fused.py): in bf16, without extras."""

    def __init__(
        self,
        block: Block,
        depths: tuple[int, int, int, int],
        channels: tuple[int, int, int, int],
        classes: int,
        stem: Stem,
        in_channels: int,
        extras: Extras,
    ) -> None:
        super().__init__()
        self.checkpointing = self.fused = False
        self.conv1 = _stem(stem, in_channels, channels[0])
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = _pooling(channels[0], extras) if stem == "standard" else nn.Identity()
        widths = [channels[0], *(block.expansion * c for c in channels)]
        self.layer1 = _stage(block, depths[0], widths[0], channels[0], 1, extras)
        self.layer2 = _stage(block, depths[1], widths[1], channels[1], 2, extras)
        self.layer3 = _stage(block, depths[2], widths[2], channels[2], 2, extras)
        self.layer4 = _stage(block, depths[3], widths[3], channels[3], 2, extras)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[4], classes)

    def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
        """`scales` are factors on the residuals, [samples, blocks] (stochastic depth, in training)."""
        if self.fused and scales is None and fused.can_compute(x, self.conv1):
            return self._fused_logits(x)
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        recompute = self.checkpointing and torch.is_grad_enabled()
        for number, block in enumerate(self._blocks()):
            scale = None if scales is None else scales[:, number]
            x = _recomputed(block, block, x, scale) if recompute else block(x, scale)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits

    def _fused_logits(self, images: Tensor) -> Tensor:
        x = fused.stem(images, (self.conv1, self.bn1), pools=isinstance(self.maxpool, nn.MaxPool2d))
        recompute = self.checkpointing and torch.is_grad_enabled()
        for block in self._blocks():
            run = partial(fused.block, block.layers, block.downsample, len(images))
            x = _recomputed(block, run, x) if recompute else run(x)
        logits: Tensor = self.fc(fused.means(x, len(images)))
        return logits

    def _blocks(self) -> Iterator[BasicBlock | Bottleneck]:
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            yield from cast("Iterable[BasicBlock | Bottleneck]", layer)


def _stem(stem: Stem, inputs: int, outputs: int) -> nn.Conv2d:
    if stem == "patch":  # as Dosovitskiy et al., 2021: no pixel is seen twice
        return nn.Conv2d(inputs, outputs, 4, 4, bias=False)
    return _conv(inputs, outputs, 3) if stem == "small" else _conv(inputs, outputs, 7, 2)


def _pooling(channels: int, extras: Extras) -> nn.Module:
    if not extras.blur_pool:
        return nn.MaxPool2d(3, 2, padding=1)
    return nn.Sequential(nn.MaxPool2d(3, 1, padding=1), Blur(channels, stride=2))


def _stage(block: Block, depth: int, inputs: int, channels: int, stride: int, extras: Extras) -> nn.Sequential:
    rest = [block(channels * block.expansion, channels, 1, extras) for _ in range(depth - 1)]
    return nn.Sequential(block(inputs, channels, stride, extras), *rest)


def _recomputed(block: nn.Module, compute: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    # Blocks draw no random numbers: saving the generators' state would only cost a sync.
    run = partial(checkpoint, compute, *inputs, use_reentrant=False, preserve_rng_state=False)
    # The compiler replays arithmetic only, so buffers change once there anyway; and it accepts no Python context.
    out: Tensor = run() if torch.compiler.is_compiling() else run(context_fn=partial(_contexts, block))
    return out


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _scratch_statistics(block)


@contextmanager
def _scratch_statistics(block: nn.Module) -> Iterator[None]:
    """Lend the block's norms copies of their running statistics, so that the second forward of a step updates nothing.

    Passing no statistics at all (`track_running_stats = False`) would be cheaper, but then batch norm saves fewer
    tensors than in the first forward, and the checkpoint refuses that.
    """
    kept = [(norm, dict(norm._buffers)) for norm in block.modules() if isinstance(norm, _BatchNorm)]
    for norm, buffers in kept:
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        yield  # leaves by an exception when the checkpoint stops early
    finally:
        for norm, buffers in kept:
            norm._buffers.update(buffers)


def _scaled(channels: int, width: float) -> int:
    return max(8, int(channels * width / 8 + 0.5) * 8)  # tensor cores want multiples of 8


def _initialize(model: ResNet, zero_gamma: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for module in model.modules():
        if zero_gamma and isinstance(module, BasicBlock | Bottleneck):
            nn.init.zeros_(module.last_norm.weight)


def block_count(name: str) -> int:
    return sum(DEPTHS[name][1])


def resnet(
    name: str,
    classes: int,
    stem: Stem = "standard",
    width: float = 1.0,
    in_channels: int = 3,
    extras: Extras | None = None,
) -> ResNet:
    """`name` is a key of DEPTHS. The small stem (3x3, no pooling) is for images of 32 to 64 pixels; the patch
    stem (4x4, no pooling) leaves as many places as the standard one and costs a twelfth of it.

    `width` scales every channel count, rounded to a multiple of 8; published weights need width 1, standard stem.
    """
    block, depths = DEPTHS[name]
    channels = (_scaled(64, width), _scaled(128, width), _scaled(256, width), _scaled(512, width))
    extras = extras or Extras()
    model = ResNet(block, depths, channels, classes, stem, in_channels, extras)
    _initialize(model, extras.zero_gamma)
    return model
