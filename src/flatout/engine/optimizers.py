"""SGD, AdamW and LAMB by name, and their state as named tensors for checkpoints (no pickle)."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.config.schema import TrainConfig
from flatout.decisions import Choice
from flatout.decisions.compute import choose_optimizer
from flatout.engine.sharded_tensors import norms_of_whole, part, shard_like
from flatout.errors import ConfigError


class OptimizerFactory(Protocol):
    """Entry points of flatout.optimizers: not read yet; `optimizer_for` builds what train.optimizer names."""

    def __call__(self, groups: list[dict[str, Any]], train: TrainConfig) -> "EagerOptimizer":
        """`groups` are those of `parameter_groups`; its state must be there before the first step (EagerOptimizer)."""
        ...


def optimizer_for(model: nn.Module, train: TrainConfig) -> "EagerOptimizer":
    """What `train` asks for, for every mode: nobody else builds one. Move or shard the model first."""
    arguments = dict(arguments_for(model, train).value)
    kinds: dict[str, Callable[..., EagerOptimizer]] = {"sgd": Sgd, "adamw": AdamW, "lamb": Lamb}
    return kinds[arguments.pop("name")](parameter_groups(model, train.weight_decay), **arguments)


def arguments_for(model: nn.Module, train: TrainConfig) -> Choice[dict[str, Any]]:
    """The optimizer's name and arguments, as decided for a model where it stands."""
    return choose_optimizer(train, _can_fuse(model))


def _can_fuse(model: nn.Module) -> bool:
    """One kernel for many parameters on CUDA, of FSDP for this rank's parts of them.

    In fp16 it is also what leaves out a step that overflowed without asking the host.
    """
    return all(each.device.type == "cuda" for each in model.parameters())


def describe_optimizer(optimizer: "EagerOptimizer") -> dict[str, Any]:
    """The settings it works with, group by group. Without `lr`: the schedule sets that at every step."""
    groups = [
        {
            "parameters": sum(each.numel() for each in group["params"]),
            **{name: value for name, value in group.items() if name not in ("params", "lr")},
        }
        for group in optimizer.param_groups
    ]
    return {"name": optimizer.kind, "groups": groups}


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and filters decay; norms and biases do not: pulling a scale to zero only fights the layer it follows.

    Groups and parameters stand in the model's own order, so every process builds the same optimizer.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.ndim > 1]
    others = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class EagerOptimizer(Optimizer):
    """An optimizer whose own steps are never compiled.

    torch wraps these methods to keep torch.compile out of them, and the wrapper's first call imports torch._dynamo: as
    long as torch itself takes, in every process. What it wraps does the same without it.
    """

    kind: str  # as train.optimizer names it
    state_names: frozenset[str]  # what it keeps for each parameter
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class _Fusable(EagerOptimizer):
    """Steps as torch's own does, or, where it is fused, by one kernel for many parameters of a group."""

    _step_of_torch: Callable[..., Any]

    def step(self, closure: Any = None) -> Any:
        if not self.defaults["fused"]:
            return self._step_of_torch(closure)
        for group in self.param_groups:
            self._fused_step(group)
        return None

    def _fused_step(self, group: dict[str, Any]) -> None:
        raise NotImplementedError


class Sgd(_Fusable, torch.optim.SGD):
    kind, state_names = "sgd", frozenset({"momentum_buffer"})
    _step_of_torch = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))

    @torch.no_grad()
    def _fused_step(self, group: dict[str, Any]) -> None:
        """Unlike torch's own, which leaves the momentum unwritten where the very first step overflows: zeros first."""
        momentum, (grad_scale, found_inf), rows = group["momentum"], _scaling(self), []
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            row = [parameter, parameter.grad]
            if momentum:
                state = self.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
                row.append(state["momentum_buffer"])
            rows.append(row)
        for parameters, gradients, *buffers in _kernel_lists(rows):
            torch._fused_sgd_(
                parameters,
                gradients,
                *(buffers or [[]]),
                lr=group["lr"],
                momentum=momentum,
                dampening=0.0,
                weight_decay=group["weight_decay"],
                nesterov=group["nesterov"],
                maximize=False,
                is_first_step=False,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )


class AdamW(_Fusable, torch.optim.AdamW):
    kind, state_names = "adamw", frozenset({"step", "exp_avg", "exp_avg_sq"})
    _step_of_torch = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))

    @torch.no_grad()
    def _fused_step(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        states = [_adam_state(self, p, on_device=True) for p in parameters]
        counts, (beta1, beta2) = [state["step"] for state in states], group["betas"]
        grad_scale, found_inf = _scaling(self)
        if counts:
            torch._foreach_add_(counts, 1)
        rows = [[p, p.grad, s["exp_avg"], s["exp_avg_sq"], s["step"]] for p, s in zip(parameters, states, strict=True)]
        for weights, gradients, means, squares, steps in _kernel_lists(rows):
            torch._fused_adamw_(
                weights,
                gradients,
                means,
                squares,
                [],
                steps,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=grad_scale,
                found_inf=found_inf,
            )
        if counts and found_inf is not None:
            torch._foreach_sub_(counts, [found_inf] * len(counts))


def _kernel_lists(rows: Iterable[list[Tensor]]) -> Iterator[list[list[Tensor]]]:
    """Columns of what one fused kernel takes: this rank's parts, none of them empty, of one type."""
    by_type: dict[torch.dtype, list[list[Tensor]]] = {}
    for row in rows:
        parts = [part(each) for each in row]
        if parts[0].numel():
            by_type.setdefault(parts[0].dtype, []).append(parts)
    for found in by_type.values():
        yield [list(column) for column in zip(*found, strict=True)]


def _scaling(optimizer: Optimizer) -> tuple[Tensor | None, Tensor | None]:
    """What the scaler of fp16 leaves here during a step: by what gradients are still to be divided, and whether some
    are infinite, both on the device."""
    return getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)


def _adam_state(optimizer: Optimizer, parameter: Tensor, on_device: bool) -> dict[str, Tensor]:
    """Of a parameter, zeros before its first step; where steps are left out on the device, they are counted there."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else None)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


class Lamb(EagerOptimizer):
    """Adam whose step is scaled, tensor by tensor, to the size of the weights (You et al., 2020): for huge batches.

    Parameters without weight decay (norms, biases) take the plain Adam step: their norm says little about a good
    step size. The trust ratio stays on the device, so a step never waits for it.
    """

    kind, state_names = "lamb", frozenset({"step", "exp_avg", "exp_avg_sq"})

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ) -> None:
        """`fused` as in torch's own: steps are counted on the device, where fp16 leaves out those that overflowed."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": fused})
        self._step_supports_amp_scaling = bool(fused)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(parameters, group)
        return loss

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        left_out = self._left_out(parameters)
        updates, weights = self._adam_updates(parameters, group, left_out), [part(p) for p in parameters]
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, _trust_ratios(parameters[0], weights, updates))
        if left_out is not None:
            torch._foreach_mul_(updates, torch.where(left_out, 0.0, 1.0))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _left_out(self, parameters: list[Tensor]) -> Tensor | None:
        """Whether this step counts for nothing, on the device; its gradients are zeros then instead of infinities."""
        grad_scale, found_inf = _scaling(self)
        gradients = [part(p.grad) for p in parameters if p.grad is not None]
        if grad_scale is not None:
            torch._foreach_div_(gradients, grad_scale)
        if found_inf is None:
            return None
        left_out = found_inf > 0
        for gradient in gradients:
            gradient.masked_fill_(left_out, 0.0)
        return left_out

    def _adam_updates(self, parameters: list[Tensor], group: dict[str, Any], left_out: Tensor | None) -> list[Tensor]:
        betas = group["betas"]
        grads = [part(p.grad) for p in parameters if p.grad is not None]
        states = [_adam_state(self, p, bool(group["fused"])) for p in parameters]
        counts = [state["step"] for state in states]
        counted = 1.0 if left_out is None else [torch.where(left_out, 0.0, 1.0)] * len(counts)
        torch._foreach_add_(counts, counted)  # one tensor for all would be read as a number
        means, squares = [part(s["exp_avg"]) for s in states], [part(s["exp_avg_sq"]) for s in states]
        decays = betas if left_out is None else [torch.where(left_out, 1.0, beta) for beta in betas]
        torch._foreach_mul_(means, decays[0])
        torch._foreach_add_(means, grads, alpha=1 - betas[0])
        torch._foreach_mul_(squares, decays[1])
        torch._foreach_addcmul_(squares, grads, grads, 1 - betas[1])
        scales = torch._foreach_div(squares, _corrections(counts, betas[1], bool(group["fused"])))
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        updates = torch._foreach_div(means, _corrections(counts, betas[0], bool(group["fused"])))
        torch._foreach_div_(updates, scales)
        return list(updates)


def _corrections(counts: list[Tensor], beta: float, on_device: bool) -> list[Any]:
    """What averages that began at zero are too small by, of each parameter; those on the device stay there."""
    if not on_device:
        return [1 - beta ** count.item() for count in counts]
    done = torch.stack(counts).clamp(min=1)  # the first step may be left out
    return list((1 - beta**done).unbind())


def _trust_ratios(like_all: Tensor, weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Of whole tensors, whose parts are given."""
    lengths = torch.stack([*torch._foreach_norm(weights), *torch._foreach_norm(updates)])
    sizes, moves = norms_of_whole(like_all, lengths).chunk(2)
    usable = (sizes > 0) & (moves > 0)  # a weight that starts at zero could otherwise never leave it
    return list(torch.where(usable, sizes / moves, 1.0).unbind())


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `momentum_buffer/layer1.0.conv1.weight`: named by parameter, whatever the groups.

    The tensors are the live ones: write or copy them before the next step. Give the bare model, not its DDP or compiled
    wrapper, whose names carry a prefix. Learning rates and the like are not state: configuration and schedule set them.
    """
    return {
        f"{state_name}/{name}": value
        for name, parameter in model.named_parameters()
        for state_name, value in sorted(optimizer.state.get(parameter, {}).items())
        if value is not None
    }


def load_optimizer_tensors(model: nn.Module, optimizer: EagerOptimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimizer's state by copies of `tensors`; nothing changes if one of them does not fit."""
    parameters = dict(model.named_parameters())
    loaded: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        state_name, _, name = key.partition("/")
        _check_fits(key, value, parameters.get(name), optimizer.state_names)
        loaded.setdefault(name, {})[state_name] = _placed(
            value, parameters[name], state_name, bool(optimizer.defaults.get("fused"))
        )
    optimizer.state.clear()
    for name, state in loaded.items():
        optimizer.state[parameters[name]] = state


def _check_fits(key: str, value: Tensor, parameter: Tensor | None, state_names: frozenset[str]) -> None:
    state_name = key.partition("/")[0]
    if state_name not in state_names:
        what = f"this optimizer keeps only {', '.join(sorted(state_names))}"
    elif parameter is None:
        what = "the model has no such parameter"
    elif state_name != "step" and value.shape != parameter.shape:
        what = f"its shape is {list(value.shape)} but the parameter's is {list(parameter.shape)}"
    else:
        return
    raise ConfigError(
        f"the checkpoint's optimizer state {key!r} does not fit: {what}; "
        "resume with the model and optimizer of the checkpoint, or start a new run"
    )


def _placed(value: Tensor, parameter: Tensor, state_name: str, fused: bool) -> Tensor:
    if state_name == "step":  # a fused kernel counts on the device
        return value.detach().to(parameter.device if fused else "cpu", copy=True)
    # the parameter's device and memory format (channels_last): other strides would be correct but slow
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(shard_like(parameter, value))
