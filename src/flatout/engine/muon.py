"""Muon: the momentum of a hidden matrix, made orthogonal before it is taken as a step (Jordan et al., 2024).

torch.optim.Muon takes matrices only. Here a filter is one too, [outputs, inputs * height * width], and what is no
hidden matrix (norms, biases, embeddings, the first and last layer) is trained by AdamW with the same rate: a step is
scaled to the size that AdamW's has (Liu et al., 2025, "Muon is scalable for LLM training"), so one rate suits both.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from flatout.engine.eager_optimizer import GroupedSteps

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's quintic: singular values end between 0.7 and 1.2
_ROUNDS = 5
_LEAST_COLUMNS_PER_ROW = 2  # from here on products of rows x rows are the cheaper ones
_LEAST_NORM = 1e-7
_SIZE_OF_ADAM = 0.2  # root mean square of a step of AdamW


def hidden_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Weights with rows and columns, without embeddings, the first and the last of them."""
    embeddings = {p for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) for p in m.parameters()}
    matrices = [p for p in model.parameters() if p.ndim > 1]
    return set(matrices[1:-1]) - embeddings


def split_groups(model: nn.Module, groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each group cut into its hidden matrices (`orthogonal`) and the rest."""
    hidden = hidden_matrices(model)
    split = []
    for group in groups:
        for orthogonal in (True, False):
            mine = [p for p in group["params"] if (p in hidden) == orthogonal]
            if mine:
                split.append({**group, "params": mine, "orthogonal": orthogonal})
    return split


def orthogonalized(matrices: Tensor) -> Tensor:
    """Of each matrix of [count, rows, columns] nearly U V^T of its singular value decomposition U S V^T.

    By Newton and Schulz: products of matrices alone. In bf16 on CUDA, which is what it was made for.
    """
    narrow = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if narrow else matrices
    x = x.to(torch.bfloat16 if x.device.type == "cuda" else torch.float32)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_LEAST_NORM)
    rows, columns = x.shape[1:]
    squares = x.dtype is torch.float32 and columns >= _LEAST_COLUMNS_PER_ROW * rows
    x = _rounds_of_squares(x) if squares else _rounds(x)
    made: Tensor = (x.mT if narrow else x).to(matrices.dtype)
    return made


def _rounds(x: Tensor) -> Tensor:
    a, b, c = _COEFFICIENTS
    for _ in range(_ROUNDS):
        products = x @ x.mT
        x = a * x + (b * products + c * products @ products) @ x
    return x


def _rounds_of_squares(x: Tensor) -> Tensor:
    """The same polynomials of X X^T, multiplied with each other before they meet X: of wide matrices a third of
    the work. Not in bf16, where X X^T would lose the small singular values."""
    a, b, c = _COEFFICIENTS
    products, factors = x @ x.mT, None
    identity = a * torch.eye(x.shape[1], device=x.device)
    for left in reversed(range(_ROUNDS)):
        polynomial = identity + b * products + c * products @ products
        factors = polynomial if factors is None else polynomial @ factors
        if left:
            products = polynomial @ products @ polynomial
    assert factors is not None
    return factors @ x


class Muon(GroupedSteps):
    """Groups are those of `split_groups`; the others of their keys are the arguments of AdamW, and `momentum`."""

    kind, state_names = "muon", frozenset({"momentum_buffer", "step", "exp_avg", "exp_avg_sq"})

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95, **options: Any) -> None:
        super().__init__(params, lr, momentum=momentum, orthogonal=False, **options)

    def names_of(self, group: dict[str, Any]) -> frozenset[str]:
        momentum = frozenset({"momentum_buffer"})
        return momentum if group["orthogonal"] else self.state_names - momentum

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        left_out = self._left_out(parameters)
        make = self._orthogonal_updates if group["orthogonal"] else self._adam_updates
        updates: list[Tensor] = make(parameters, group, left_out)
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if left_out is not None:
            torch._foreach_mul_(updates, torch.where(left_out, 0.0, 1.0))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _orthogonal_updates(
        self, parameters: list[Tensor], group: dict[str, Any], left_out: Tensor | None
    ) -> list[Tensor]:
        momentum, buffers = group["momentum"], [self._buffer(p) for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if left_out is not None:  # an average of itself stays what it is
            gradients = [torch.where(left_out, b, g) for b, g in zip(buffers, gradients, strict=True)]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return _by_shape([gradient.lerp(buffer, momentum) for gradient, buffer in zip(gradients, buffers, strict=True)])

    def _buffer(self, parameter: Tensor) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state["momentum_buffer"]


def _by_shape(directions: list[Tensor]) -> list[Tensor]:
    """Orthogonal, of the size of AdamW's steps, in the given order: matrices of one shape go through together."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, direction in enumerate(directions):
        places.setdefault((len(direction), direction[0].numel()), []).append(place)
    updates = list(directions)
    for (rows, columns), mine in places.items():
        stacked = torch.stack([directions[place].reshape(rows, columns) for place in mine])
        made = orthogonalized(stacked) * (_SIZE_OF_ADAM * math.sqrt(max(rows, columns)))
        for place, update in zip(mine, made, strict=True):
            updates[place] = torch.empty_like(directions[place]).copy_(update.view(directions[place].shape))
    return updates
