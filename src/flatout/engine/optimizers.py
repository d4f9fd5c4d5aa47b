"""SGD, AdamW and LAMB by name, and their state as named tensors for checkpoints (no pickle)."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.config.schema import TrainConfig
from flatout.decisions import Choice
from flatout.decisions.compute import choose_optimizer
from flatout.engine.whole_tensors import like
from flatout.errors import ConfigError


def optimizer_for(model: nn.Module, train: TrainConfig) -> "EagerOptimizer":
    """What `train` asks for, for every mode: nobody else builds one. Move or shard the model first."""
    arguments = dict(arguments_for(model, train).value)
    kinds: dict[str, Callable[..., EagerOptimizer]] = {"sgd": Sgd, "adamw": AdamW, "lamb": Lamb}
    return kinds[arguments.pop("name")](parameter_groups(model, train.weight_decay), **arguments)


def arguments_for(model: nn.Module, train: TrainConfig) -> Choice[dict[str, Any]]:
    """The optimizer's name and arguments, as decided for a model where it stands."""
    return choose_optimizer(train, _can_fuse(model))


def _can_fuse(model: nn.Module) -> bool:
    """One kernel for many parameters on CUDA; torch has none for the shards of FSDP in every optimizer.

    In fp16 it is also what leaves out a step that overflowed without asking the host.
    """
    return all(each.device.type == "cuda" and not hasattr(each, "full_tensor") for each in model.parameters())


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


class Sgd(EagerOptimizer, torch.optim.SGD):
    kind, state_names = "sgd", frozenset({"momentum_buffer"})
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class AdamW(EagerOptimizer, torch.optim.AdamW):
    kind, state_names = "adamw", frozenset({"step", "exp_avg", "exp_avg_sq"})
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


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
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

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
        updates = self._adam_updates(parameters, group)
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, _trust_ratios(parameters, updates))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _adam_updates(self, parameters: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        beta1, beta2 = group["betas"]
        grads = [p.grad for p in parameters if p.grad is not None]
        states = [self._state_of(p) for p in parameters]
        for state in states:
            state["step"] += 1
        steps = [state["step"].item() for state in states]  # lives on the CPU: no wait
        means, squares = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        scales = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, scales)
        return list(updates)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


def _trust_ratios(parameters: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    sizes = torch.stack(torch._foreach_norm(parameters))
    lengths = torch.stack(torch._foreach_norm(updates))
    usable = (sizes > 0) & (lengths > 0)  # a weight that starts at zero could otherwise never leave it
    return list(torch.where(usable, sizes / lengths, 1.0).unbind())


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
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(like(parameter, value))
