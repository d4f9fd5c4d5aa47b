"""What the optimizers of flatout have in common: no compiler around a step, and the moments of Adam."""

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flatout.engine.sharded_tensors import part


class EagerOptimizer(Optimizer):
    """An optimizer whose own steps are never compiled.

    torch wraps these methods to keep torch.compile out of them, and the wrapper's first call imports torch._dynamo: as
    long as torch itself takes, in every process. What it wraps does the same without it.
    """

    kind: str  # as train.optimizer names it
    state_names: frozenset[str]  # what it keeps for each parameter
    number_names: frozenset[str] = frozenset()  # of them, what is no tensor
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    def names_of(self, group: dict[str, Any]) -> frozenset[str]:
        """What it keeps for each parameter of one of its groups."""
        return self.state_names


def scaling(optimizer: Optimizer) -> tuple[Tensor | None, Tensor | None]:
    """What the scaler of fp16 leaves here during a step: by what gradients are still to be divided, and whether some
    are infinite, both on the device."""
    return getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)


def adam_state(optimizer: Optimizer, parameter: Tensor, on_device: bool) -> dict[str, Tensor]:
    """Of a parameter, zeros before its first step; where steps are left out on the device, they are counted there."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else None)
        state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


class GroupedSteps(EagerOptimizer):
    """Steps group by group, many tensors at a time; nothing of it waits for the device. Groups have `fused` as torch's
    own do: steps are counted on the device, where fp16 leaves out those that overflowed."""

    eps = 1e-8

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fused: bool | None = None,
        **more: float,
    ) -> None:
        values = {"lr": lr, "betas": betas, "eps": self.eps, "weight_decay": weight_decay, "fused": fused}
        super().__init__(params, {**values, **more})
        self._step_supports_amp_scaling = bool(fused)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody here steps with a closure
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(parameters, group)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        raise NotImplementedError

    def _left_out(self, parameters: list[Tensor]) -> Tensor | None:
        """Whether this step counts for nothing, on the device; its gradients are zeros then instead of infinities."""
        grad_scale, found_inf = scaling(self)
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
        states = [adam_state(self, p, bool(group["fused"])) for p in parameters]
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
