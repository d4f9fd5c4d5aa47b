"""SGD, AdamW, LAMB and Muon by name, and their state as named tensors for checkpoints (no pickle)."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flatout.config.schema import TrainConfig
from flatout.decisions import Choice
from flatout.decisions.compute import choose_optimizer
from flatout.engine.eager_optimizer import EagerOptimizer, GroupedSteps, adam_state, scaling
from flatout.engine.muon import Muon, split_groups
from flatout.engine.own_optimizer import build_own
from flatout.engine.parameters import bare, parameter_groups
from flatout.engine.sharded_tensors import norms_of_whole, part, shard_like
from flatout.errors import ConfigError


class OptimizerFactory(Protocol):
    """An optimizer of the user's own: `train.optimizer: torch.optim:RMSprop`, or an entry point of flatout.optimizers.

    Its state of each parameter (tensors and numbers) goes into checkpoints; the schedule sets `lr` of its groups.
    """

    def __call__(self, groups: list[dict[str, Any]], *, lr: float, **options: Any) -> Optimizer:
        """`groups` are those of `parameter_groups`: with `params` and `weight_decay`."""
        ...


def optimizer_for(model: nn.Module, train: TrainConfig) -> EagerOptimizer:
    """What `train` asks for, for every mode: nobody else builds one. Move or shard the model first."""
    groups, arguments = parameter_groups(model, train), dict(arguments_for(model, train).value)
    kinds: dict[str, Callable[..., EagerOptimizer]] = {"sgd": Sgd, "adamw": AdamW, "lamb": Lamb, "muon": Muon}
    if train.optimizer not in kinds:
        return cast(EagerOptimizer, build_own(groups, train))
    if train.optimizer == "muon":
        groups = split_groups(bare(model), groups)
    return kinds[arguments.pop("name")](groups, **arguments)


def arguments_for(model: nn.Module, train: TrainConfig) -> Choice[dict[str, Any]]:
    """The optimizer's name and arguments, as decided for a model where it stands."""
    return choose_optimizer(train, _can_fuse(model))


def _can_fuse(model: nn.Module) -> bool:
    """One kernel for many parameters on CUDA, of FSDP for this rank's parts of them.

    In fp16 it is also what leaves out a step that overflowed without asking the host.
    """
    return all(each.device.type == "cuda" for each in model.parameters())


def describe_optimizer(optimizer: EagerOptimizer) -> dict[str, Any]:
    """The settings it works with, group by group. Without `lr`: the schedule sets that at every step."""
    groups = [
        {
            "parameters": sum(each.numel() for each in group["params"]),
            **{name: value for name, value in group.items() if name not in ("params", "lr")},
        }
        for group in optimizer.param_groups
    ]
    return {"name": optimizer.kind, "groups": groups}


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
        momentum, (grad_scale, found_inf), rows = group["momentum"], scaling(self), []
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
        states = [adam_state(self, p, on_device=True) for p in parameters]
        counts, (beta1, beta2) = [state["step"] for state in states], group["betas"]
        grad_scale, found_inf = scaling(self)
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


class Lamb(GroupedSteps):
    """Adam whose step is scaled, tensor by tensor, to the size of the weights (You et al., 2020): for huge batches.

    Parameters without weight decay (norms, biases) take the plain Adam step: their norm says little about a good
    step size. The trust ratio stays on the device, so a step never waits for it.
    """

    kind, state_names, eps = "lamb", frozenset({"step", "exp_avg", "exp_avg_sq"}), 1e-6

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        left_out = self._left_out(parameters)
        updates, weights = self._adam_updates(parameters, group, left_out), [part(p) for p in parameters]
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, _trust_ratios(parameters[0], weights, updates))
        if left_out is not None:
            torch._foreach_mul_(updates, torch.where(left_out, 0.0, 1.0))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


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
        f"{state_name}/{name}": value if isinstance(value, Tensor) else torch.tensor(value, dtype=_wide(value))
        for name, parameter in model.named_parameters()
        for state_name, value in sorted(optimizer.state.get(parameter, {}).items())
        if value is not None
    }


def _wide(number: float) -> torch.dtype:
    return torch.int64 if isinstance(number, int) else torch.float64


def load_optimizer_tensors(model: nn.Module, optimizer: EagerOptimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimizer's state by copies of `tensors`; nothing changes if one of them does not fit."""
    parameters = dict(model.named_parameters())
    loaded: dict[str, dict[str, Any]] = {}
    for key, value in tensors.items():
        state_name, _, name = key.partition("/")
        _check_fits(key, value, parameters.get(name), optimizer)
        placed = _placed(value, parameters[name], state_name, bool(optimizer.defaults.get("fused")))
        loaded.setdefault(name, {})[state_name] = placed.item() if state_name in optimizer.number_names else placed
    optimizer.state.clear()
    for name, state in loaded.items():
        optimizer.state[parameters[name]] = state


def _check_fits(key: str, value: Tensor, parameter: Tensor | None, optimizer: EagerOptimizer) -> None:
    state_name, own = key.partition("/")[0], not isinstance(optimizer, EagerOptimizer)  # shapes of its own
    if state_name not in optimizer.state_names:
        what = f"this optimizer keeps only {', '.join(sorted(optimizer.state_names))}"
    elif parameter is None:
        what = "the model has no such parameter"
    elif state_name != "step" and value.shape != parameter.shape and not own:
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
    if value.shape != parameter.shape:
        return value.detach().to(parameter.device, copy=True)
    # the parameter's device and memory format (channels_last): other strides would be correct but slow
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(shard_like(parameter, value))
