"""One training step on tensors without memory: which kernels run, what they compute and move, what is held when.

Fake tensors have shapes and no data, so any model that runs on a CPU is traced in seconds, whatever its size. The one
file of this room that imports torch.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from flatout.planning.device_rules import CudaRules
from flatout.planning.work import PARTS, Kernels, Line, TracedWork

_BLOCK_BYTES = 512
"""What torch's CUDA allocator rounds every tensor up to."""
_CONVOLUTIONS = {"convolution", "_convolution", "convolution_backward", "mkldnn_convolution"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "addmv", "mv"}
_NORMS = ("batch_norm", "layer_norm", "group_norm", "softmax", "rms_norm")
_COPIES = {
    "_to_copy",
    "copy_",
    "clone",
    "cat",
    "stack",
    "index",
    "gather",
    "embedding",
    "embedding_dense_backward",
    "roll",
    "constant_pad_nd",
    "_unsafe_view",
    "index_select",
    "slice_backward",
    "select_backward",
}
_FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "set_",
    "_local_scalar_dense",
    "is_same_size",
    "alias",
    "record_stream",
}


class CannotTrace(Exception):
    """The model does something that needs the values of its tensors, or is not a model at all."""


@dataclass(frozen=True)
class Step:
    """How to run one step of a job. `loss` makes its own inputs for a batch of that many samples."""

    build: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    optimizer: Callable[[nn.Module], Optimizer] | None = None
    precision: str = "fp32"
    """fp32, bf16, fp16 (autocast around fp32 weights) or half (the whole model in 16 bits)."""
    channels_last: bool = False
    cuda: bool = True
    """As on a CUDA device; False is as this CPU does it, to be held against its allocator."""
    unit: str = "images"


@dataclass
class _Seen:
    """One kernel as it ran."""

    kind: str
    phase: str
    width: int
    flops: float
    bytes: float
    sixteen_bit: bool


@dataclass
class _Trace:
    kernels: list[_Seen] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    parameters: int = 0
    gradient_bytes: float = 0.0
    largest: float = 0.0


def trace(step: Step, batches: tuple[int, int]) -> TracedWork:
    """The step's work as lines through two traced batches. Raises CannotTrace with the reason in one line."""
    small, large = (_run(step, batch) for batch in batches)
    if [each.kind for each in small.kernels] != [each.kind for each in large.kernels]:
        raise CannotTrace("its kernels change with the size of the batch")
    ends = (float(batches[0]), float(batches[1]))
    forward, backward = (
        sum(each.flops for each in large.kernels if each.phase == phase) for phase in ("forward", "backward")
    )
    return TracedWork(
        _grouped(small.kernels, large.kernels, ends),
        _memory_lines(small.peak, large.peak, ends),
        large.parameters,
        large.gradient_bytes,
        forward / ((forward + backward) or 1.0),
        Line.through((ends[0], small.largest), (ends[1], large.largest)),
        step.unit,
    )


def _memory_lines(small: dict[str, float], large: dict[str, float], ends: tuple[float, float]) -> dict[str, Line]:
    """The moment of the peak may be another one at a small batch, so that only sums can be compared: what does not grow
    is as in the large one, the rest is activations."""
    fixed = {part: Line(large[part], 0.0) for part in PARTS if part != "activations"}
    rest = sum(small.values()) - sum(line.fixed for line in fixed.values())
    slope = max(0.0, (large["activations"] - rest) / (ends[1] - ends[0]))
    return {**fixed, "activations": Line(large["activations"] - slope * ends[1], slope)}


def traced_peak(step: Step, batch: int) -> dict[str, float]:
    """Bytes by part at the peak of one step of just this batch."""
    return _run(step, batch).peak


def _grouped(small: Sequence[_Seen], large: Sequence[_Seen], ends: tuple[float, float]) -> tuple[Kernels, ...]:
    counts: dict[Kernels, int] = {}
    for low, high in zip(small, large, strict=True):
        flops = Line.through((ends[0], low.flops), (ends[1], high.flops))
        moved = Line.through((ends[0], low.bytes), (ends[1], high.bytes))
        key = Kernels(high.kind, high.phase, high.width, 1, flops, moved, high.sixteen_bit)
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        Kernels(each.kind, each.phase, each.width, count, each.flops, each.bytes, each.sixteen_bit)
        for each, count in counts.items()
    )


def _run(step: Step, batch: int) -> _Trace:
    try:
        with ExitStack() as modes:
            modes.enter_context(torch.random.fork_rng(devices=[]))
            fake = modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            return _measured_step(step, batch, _built(step, fake), modes)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CannotTrace(f"it looks at the values of its tensors ({error.func}), and here they have none") from error
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise CannotTrace(" ".join(str(error).split())[:300] or type(error).__name__) from error


def _built(step: Step, fake: FakeTensorMode) -> nn.Module:
    """Without memory where the model lets itself be built so; a constructor that reads values gets real ones."""
    half, channels_last = step.precision == "half", step.channels_last
    try:
        model = step.build()
        _convert(model, half, channels_last)
    except (DataDependentOutputException, DynamicOutputShapeException):
        with unset_fake_temporarily():
            model = step.build()
        _convert(model, half, channels_last, fake)
    return model.train()


def _measured_step(step: Step, batch: int, model: nn.Module, modes: ExitStack) -> _Trace:
    optimizer = step.optimizer(model) if step.optimizer is not None else None
    recorder = _Recorder(on_cpu=not step.cuda)
    recorder.hold("weights", [*model.parameters(), *model.buffers()])
    if optimizer is not None:
        _fill_state(model, optimizer, recorder)
    modes.enter_context(recorder)
    if step.cuda:
        modes.enter_context(CudaRules(autocast=step.precision in ("bf16", "fp16")))
    with recorder.phase("forward"), _autocast(step.precision):
        loss = step.loss(model, batch)
    with recorder.phase("backward"), recorder.gradients_of(model):
        loss.backward()  # type: ignore[no-untyped-call]
    del loss
    found = recorder.trace
    found.parameters = sum(each.numel() for each in model.parameters())
    found.gradient_bytes = float(sum(_tensor_bytes(each) for each in model.parameters() if each.requires_grad))
    if optimizer is not None:
        found.kernels.append(_optimizer_kernel(model, optimizer))
    return found


def _convert(model: nn.Module, half: bool, channels_last: bool, fake: FakeTensorMode | None = None) -> None:
    """What `model.half()` and `model.to(memory_format=...)` do, which cannot replace fake parameters; `fake` takes the
    memory from a model that was built with it."""
    if not (half or channels_last or fake):
        return
    converted: dict[int, nn.Parameter] = {}

    def convert(tensor: Tensor) -> Tensor:
        kind = torch.float16 if half and tensor.is_floating_point() else tensor.dtype
        layout = torch.channels_last if channels_last and tensor.ndim == 4 else torch.preserve_format
        tensor = tensor if fake is None else fake.from_tensor(tensor)
        return tensor.detach().to(dtype=kind, memory_format=layout)

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in converted:
                    converted[id(parameter)] = nn.Parameter(convert(parameter), parameter.requires_grad)
                module._parameters[name] = converted[id(parameter)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else convert(buffer)


def _autocast(precision: str) -> AbstractContextManager[object]:
    if precision not in ("bf16", "fp16"):
        return nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16 if precision == "bf16" else torch.float16)


def _fill_state(model: nn.Module, optimizer: Optimizer, recorder: "_Recorder") -> None:
    """A step that has no effect, so that the state of a run under way is there."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    recorder.hold("optimizer", _state_tensors(optimizer))


def _state_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [each for each in tree_leaves(dict(optimizer.state)) if isinstance(each, Tensor)]


def _optimizer_kernel(model: nn.Module, optimizer: Optimizer) -> _Seen:
    """As one fused kernel does it: weights and state read and written, gradients read."""
    trained = [each for each in model.parameters() if each.requires_grad]
    state = [each for each in _state_tensors(optimizer) if each.numel() > 1]
    moved = 3 * sum(map(_tensor_bytes, trained)) + 2 * sum(map(_tensor_bytes, state))
    return _Seen("optimizer", "optimizer", 0, 0.0, float(moved), False)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator after autograd; counts its work, and what storages are alive."""

    def __init__(self, on_cpu: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = _Trace()
        self._on_cpu = on_cpu
        self._block_bytes = 1 if on_cpu else _BLOCK_BYTES
        self._phase = ""
        self._alive = dict.fromkeys(PARTS, 0.0)
        self._held: dict[int, tuple[str, float, weakref.ref[Any]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase = name
        yield
        self._phase = ""

    @contextmanager
    def gradients_of(self, model: nn.Module) -> Iterator[None]:
        """Moves each gradient from activations to gradients as it is complete."""

        def complete(parameter: Tensor) -> None:
            self.hold("gradients", [parameter.grad])

        hooks = [
            each.register_post_accumulate_grad_hook(complete)  # type: ignore[no-untyped-call]
            for each in model.parameters()
            if each.requires_grad
        ]
        yield
        for hook in hooks:
            hook.remove()

    def hold(self, part: str, tensors: Iterable[Tensor | None]) -> None:
        """Count the storages of these tensors as `part`, once each, until they are freed."""
        for tensor in tensors:
            if tensor is None:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            known = self._held.pop(key, None)
            if known is not None:
                self._alive[known[0]] -= known[1]
            size = -(-storage.nbytes() // self._block_bytes) * self._block_bytes
            self._held[key] = (part, float(size), weakref.ref(storage, partial(self._free, key)))
            self._alive[part] += size
        self._note_peak()

    def _free(self, key: int, reference: weakref.ref[Any]) -> None:
        known = self._held.get(key)
        if known is not None and known[2] is reference:  # else the address has a new owner by now
            del self._held[key]
            self._alive[known[0]] -= known[1]

    def _note_peak(self, passing_bytes: float = 0.0) -> None:
        if sum(self._alive.values()) + passing_bytes > sum(self.trace.peak.values()):
            self.trace.peak = {**self._alive, "activations": self._alive["activations"] + passing_bytes}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        outputs = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
        new = [each for each in outputs if each.untyped_storage()._cdata not in self._held]
        if new:
            self.hold("activations", new)
            self.trace.largest = max(self.trace.largest, *(float(_tensor_bytes(each)) for each in new))
        name = func.overloadpacket.__name__
        if name == "convolution_backward" and self._on_cpu:
            self._note_peak(_copied_by_onednn(args[2]))
        if self._phase and name not in _FREE and (new or func._schema.is_mutable) and not func.is_view:
            self._record(func, name, args, kwargs, result, outputs)
        return result

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, result: Any, outputs: Sequence[Tensor]) -> None:
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        flops = _flops(func.overloadpacket, name, args, kwargs, result)
        kind, width = _kind(name, args, inputs)
        moved = sum(map(_tensor_bytes, inputs)) + sum(map(_tensor_bytes, outputs))
        narrow = any(each.dtype in (torch.float16, torch.bfloat16) for each in inputs)
        for share in _passes(name, args):
            self.trace.kernels.append(_Seen(kind, self._phase, width, flops * share, moved * share, narrow))


def _flops(packet: Any, name: str, args: Any, kwargs: Any, result: Any) -> float:
    """torch's own formula forgets the groups of a convolution's gradient: 16 times too much for EfficientNet-B4."""
    if name in _CONVOLUTIONS:
        backward = name == "convolution_backward"
        output, source, weight, transposed = (*args[:3], args[7]) if backward else (result, *args[:2], args[6])
        passes = sum(args[10][:2]) if backward else 1
        return float(2 * passes * (source if transposed else output).numel() * weight[0].numel())
    formula = flop_registry.get(packet)
    return 0.0 if formula is None else float(formula(*args, **kwargs, out_val=result))


def _passes(name: str, args: Any) -> tuple[float, ...]:
    """The gradient of a convolution is two kernels: towards its input and towards its weights."""
    if name == "convolution_backward" and args[10][0] and args[10][1]:
        return (0.5, 0.5)
    return (1.0,)


def _kind(name: str, args: Any, inputs: Sequence[Tensor]) -> tuple[str, int]:
    if name in _CONVOLUTIONS:
        weight, groups = (args[2], args[9]) if name == "convolution_backward" else (args[1], args[8])
        width = min(weight.shape[0] // groups, weight.shape[1])
        if groups == 1:
            return "conv", min(weight.shape[0], weight[0].numel())
        if weight.shape[1] == 1:
            return "depthwise", width
        return ("grouped" if weight.shape[0] & (weight.shape[0] - 1) == 0 else "odd_grouped"), width
    if name in _PRODUCTS:
        return "matmul", min(min(each.shape[-2:]) for each in inputs[-2:] if each.ndim >= 2)
    if "attention" in name:
        return "attention", 0
    if any(part in name for part in _NORMS):
        return "norm", 0
    return ("copy" if name in _COPIES else "elementwise"), 0


def _copied_by_onednn(weight: Tensor) -> float:
    """It adds the gradient of weights up in a copy of its own, and in another where channels are innermost."""
    copies = 1 if weight.is_contiguous() else 2
    return 4.0 * weight.numel() * copies


def _tensor_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
