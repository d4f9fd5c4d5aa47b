"""Convolution, batch norm, addition and ReLU of our ResNets as one step, in bf16, on CPUs with AVX512_BF16.

The arithmetic is in native/ (native.h says how activations lie in memory); here are its gradients for torch. It
differs from torch's bf16 by rounding alone: sums are in fp32, and an activation is rounded to bf16 once behind each
convolution and once behind each norm with its addition and ReLU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode

from flatout.decisions.compute import FUSED_GROUP

try:
    from flatout.tasks.classification import _fused

    SUPPORTED = _fused.ABI == 1 and _fused.supported()
except ImportError:
    SUPPORTED = False

GROUP = FUSED_GROUP  # samples that lie side by side
COLOURS = 3  # what the packing of pixels knows
Layer = tuple[nn.Conv2d, nn.BatchNorm2d]


class _Geometry(NamedTuple):
    """As in native.h."""

    samples: int
    in_rows: int
    in_columns: int
    out_rows: int
    out_columns: int
    kernel_rows: int
    kernel_columns: int
    stride_rows: int
    stride_columns: int
    padding_rows: int
    padding_columns: int
    inputs: int
    outputs: int
    row_pairs: int
    column_pairs: int

    @property
    def numbers(self) -> tuple[int, ...]:
        return (*self, torch.get_num_threads())

    @property
    def values(self) -> int:
        """Of a channel of the output."""
        return self.samples * self.out_rows * self.out_columns

    @property
    def extent(self) -> tuple[int, ...]:
        return self.samples, self.out_rows, self.out_columns, self.outputs, torch.get_num_threads()

    def empty(self, rows: int, columns: int, channels: int) -> Tensor:
        groups = -(-self.samples // GROUP)
        return torch.empty(groups, rows, columns, channels // 2, GROUP, 2, dtype=torch.bfloat16)


class _ConvNorm(torch.autograd.Function):
    """`weight` is [outputs, kernel rows, kernel columns, inputs]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        residual: Tensor | None,
        norm: nn.BatchNorm2d,
        geometry: _Geometry,
        relu: bool,
    ) -> Tensor:
        g, weight, trains = geometry, weight.contiguous(), norm.training
        z, y = (g.empty(g.out_rows, g.out_columns, g.outputs) for _ in range(2))
        if trains and g.values == 1:  # as torch says it: a variance of zero would spoil the running one
            raise ValueError(f"Expected more than 1 value per channel when training, got {g.outputs} channels of 1")
        partial = torch.empty(len(z) * g.out_rows, 2, g.outputs) if trains else None
        packed, factors = torch.empty(weight.numel() // 2), torch.empty(2, g.outputs)
        mean, inverse = (torch.empty(g.outputs) for _ in range(2))  # `inverse` is one over the deviation
        _fused.conv(g.numbers, _at(x), _at(weight), _at(packed), _at(z), _at(partial))
        if trains:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
        addresses = [_at(each) for each in (scale, shift, mean, inverse, norm.running_mean, norm.running_var)]
        numbers = *addresses, norm.eps, _momentum(norm) if trains else 0.0, trains
        _fused.norm(g.extent, numbers, _at(partial), _at(z), _at(residual), relu, _at(factors), _at(y))
        ctx.geometry, ctx.trains = g, trains
        ctx.save_for_backward(x, weight, z, y if relu else None, scale, mean, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, z, y, scale, mean, inverse = ctx.saved_tensors
        g, needs, gradient = ctx.geometry, ctx.needs_input_grad, gradient.contiguous()
        z_gradient, partial = torch.empty_like(z), torch.empty(len(z) * g.out_rows, 2, g.outputs)
        factors, of_norm = torch.empty(3, g.outputs), torch.empty(2, g.outputs)
        masked = gradient if y is None else torch.empty_like(z) if needs[4] else None
        behind = None if y is None else masked  # without a ReLU they are the same
        tensors = (gradient, y, z, partial, factors, z_gradient, behind, *of_norm)
        numbers = _at(scale), 0, _at(mean), _at(inverse), 0, 0, 0.0, 0.0, ctx.trains
        _fused.norm_backward(g.extent, numbers, *(_at(each) for each in tensors))
        x_gradient = weight_gradient = None
        if needs[0]:
            x_gradient, packed = torch.empty_like(x), torch.empty(weight.numel() // 2)
            _fused.conv_to_inputs(g.numbers, _at(z_gradient), _at(weight), _at(packed), _at(x_gradient))
        if needs[1]:
            weight_gradient = torch.empty_like(weight)
            numbers = g.numbers  # once: the room depends on the number of threads
            scratch = torch.empty(_fused.scratch_pairs(numbers))
            _fused.conv_to_weights(numbers, _at(x), _at(z_gradient), _at(scratch), _at(weight_gradient))
        residual_gradient = masked if needs[4] else None
        return x_gradient, weight_gradient, of_norm[0], of_norm[1], residual_gradient, None, None, None


class _Pool(torch.autograd.Function):
    """3x3 with stride 2, of what a ReLU left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        groups, rows, columns, pairs = x.shape[:4]
        y = x.new_empty(groups, -(-rows // 2), -(-columns // 2), pairs, GROUP, 2)
        places = torch.empty_like(y)
        _fused.pool(False, _at(x), _at(y), _at(places), groups, rows, columns, pairs, torch.get_num_threads())
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (places,) = ctx.saved_tensors
        gradient, x_gradient = gradient.contiguous(), gradient.new_empty(ctx.shape)
        sizes = (*ctx.shape[:4], torch.get_num_threads())
        _fused.pool(True, _at(gradient), _at(x_gradient), _at(places), *sizes)
        return x_gradient


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _momentum(norm: nn.BatchNorm2d) -> float:
    assert norm.num_batches_tracked is not None
    return 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum


def _conv_norm(x: Tensor, layer: Layer, samples: int, relu: bool = True, residual: Tensor | None = None) -> Tensor:
    conv, norm = layer
    rows, columns, pairs = x.shape[1:4]
    (kernel, _), (stride, _), padding = conv.kernel_size, conv.stride, int(conv.padding[0])
    out_rows, out_columns = ((size + 2 * padding - kernel) // stride + 1 for size in (rows, columns))
    sizes = (rows, columns, out_rows, out_columns, kernel, kernel, stride, stride, padding, padding)
    geometry = _Geometry(samples, *sizes, 2 * pairs, conv.out_channels, columns * pairs, pairs)
    return _apply(x, conv.weight.permute(0, 2, 3, 1), norm, residual, geometry, relu)


def _apply(x: Tensor, weight: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None, *others: Any) -> Tensor:
    y: Tensor = _ConvNorm.apply(x, weight, norm.weight, norm.bias, residual, norm, *others)  # type: ignore[no-untyped-call]
    return y


def _stem(images: Tensor, layer: Layer) -> Tensor:
    """With so few channels a window's row is one long tap: pixels lie `step` numbers apart, behind zeros as padding."""
    conv, norm = layer
    samples, channels, rows, columns = images.shape
    (kernel, _), (stride, _), padding = conv.kernel_size, conv.stride, int(conv.padding[0])
    out_rows, out_columns = ((size + 2 * padding - kernel) // stride + 1 for size in (rows, columns))
    step = channels if stride * channels % 2 == 0 else channels + 1  # every window begins with a pair
    window = -(-kernel * step // 2) * 2
    elements = max(padding * step + step * columns, (out_columns - 1) * stride * step + window)
    elements = -(-elements // 2) * 2
    packed = torch.empty(-(-samples // GROUP), rows, elements // 2, GROUP, 2, dtype=torch.bfloat16)
    images = images.float().contiguous()
    sizes = (samples, rows, columns, step, padding * step, elements, torch.get_num_threads())
    _fused.pack(_at(images), _at(packed), *sizes)
    weight = F.pad(conv.weight.permute(0, 2, 3, 1), (0, step - channels)).flatten(2)
    weight = F.pad(weight, (0, window - kernel * step))[:, :, None]
    places = (rows, out_columns, out_rows, out_columns, kernel, 1, stride, 1, padding, 0)
    geometry = _Geometry(samples, *places, window, conv.out_channels, elements // 2, stride * step // 2)
    return _apply(packed, weight, norm, None, geometry, True)


def can_compute(images: Tensor, first: nn.Conv2d) -> bool:
    """Whether these are computed in bf16 on a CPU, and by code that is there: not traced for another one. What does
    not fit the first layer is torch's to refuse: the compiled code trusts the sizes and types that it is given."""
    if not SUPPORTED or images.device.type != "cpu" or images.requires_grad or not _fits(images, first):
        return False
    traced = torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None
    bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    return bf16 and not traced


def _fits(images: Tensor, first: nn.Conv2d) -> bool:
    if images.dim() != 4 or images.shape[1] != first.in_channels or first.in_channels != COLOURS:
        return False
    least = max(1, first.kernel_size[0] - 2 * int(first.padding[0]))
    return len(images) > 0 and min(images.shape[2:]) >= least and first.weight.dtype is torch.float32


def block(layers: Sequence[Layer], shortcut: nn.Module | None, samples: int, x: Tensor) -> Tensor:
    """A residual block: the sum is with the last layer's norm."""
    kept = x if shortcut is None else _conv_norm(x, cast(Layer, tuple(shortcut.children())), samples, relu=False)
    for layer in layers[:-1]:
        x = _conv_norm(x, layer, samples)
    return _conv_norm(x, layers[-1], samples, residual=kept)


def stem(images: Tensor, layer: Layer, pools: bool) -> Tensor:
    x = _stem(images, layer)
    return _Pool.apply(x) if pools else x  # type: ignore[no-untyped-call]


def means(x: Tensor, samples: int) -> Tensor:
    """Of each channel over its places: [samples, channels], as fp32."""
    of_places = x.float().mean((1, 2))  # [groups, pairs, 32, 2]
    return of_places.permute(0, 2, 1, 3).reshape(-1, 2 * x.shape[3])[:samples]
