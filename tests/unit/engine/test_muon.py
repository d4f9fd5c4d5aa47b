"""Muon: steps of hidden matrices are orthogonal, of the size of AdamW's; everything else is AdamW to the bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout.config.loading import load_config
from flatout.config.schema import TrainConfig
from flatout.engine import muon
from flatout.engine.muon import Muon, hidden_matrices, orthogonalized, split_groups
from flatout.engine.optimizers import load_optimizer_tensors, optimizer_for, optimizer_tensors
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import resnet


def net() -> nn.Module:
    torch.manual_seed(0)
    return resnet("resnet18", 5, "small", 0.125).to(memory_format=torch.channels_last)


def build(model: nn.Module, **train: Any) -> Any:
    return optimizer_for(model, TrainConfig(optimizer="muon", **{"lr": 0.01, **train}))


def give_gradients(model: nn.Module, seed: int) -> None:
    drawn = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=drawn).to(memory_format=torch.preserve_format)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 40), (1, 30, 5)])
def test_orthogonalized_has_singular_values_near_one_in_the_same_directions(shape: tuple[int, ...]) -> None:
    given = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    made = orthogonalized(given)
    values = torch.linalg.svdvals(made)
    assert bool(((values > 0.3) & (values < 1.3)).all())  # the least of a square matrix begin near zero
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    core = left.mT @ made @ right.mT
    off = core - torch.diag_embed(core.diagonal(dim1=1, dim2=2))
    assert float(off.abs().max()) < 1e-3
    assert torch.equal(orthogonalized(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


def test_matrices_of_a_batch_do_not_touch_each_other() -> None:
    given = torch.randn(3, 8, 20, generator=torch.Generator().manual_seed(4))
    together, alone = orthogonalized(given), torch.cat([orthogonalized(each[None]) for each in given])
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 16, 32), (1, 48, 432), (1, 432, 48)])
def test_the_cheaper_order_of_products_gives_the_same_steps(shape: tuple[int, ...]) -> None:
    """Small singular values included: those of gradients span many powers of ten."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    left, _, right = torch.linalg.svd(drawn, full_matrices=False)
    values = torch.logspace(0, -6, left.shape[-1], dtype=torch.float64)
    given = left @ torch.diag_embed(values.expand(shape[0], -1)) @ right
    x = given.mT if shape[1] > shape[2] else given
    exact = muon._rounds(x / x.norm(dim=(1, 2), keepdim=True))
    made = orthogonalized(given.float())
    assert float((made.double() - (exact.mT if shape[1] > shape[2] else exact)).norm() / exact.norm()) < 1e-3


def test_filters_are_hidden_matrices_and_the_first_and_last_layer_are_not() -> None:
    model = net()
    hidden = hidden_matrices(model)
    names = {name for name, p in model.named_parameters() if p in hidden}
    assert names == {n for n, p in model.named_parameters() if p.ndim == 4} - {"conv1.weight"}
    words = nn.Sequential(nn.Linear(4, 4), nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    assert hidden_matrices(words) == {words[2].weight}


def test_it_steps_as_torchs_own_does_with_matrices() -> None:
    """torch computes in bf16: the directions agree as far as that goes."""
    start = torch.randn(12, 30, generator=torch.Generator().manual_seed(5))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    mine = Muon([{"params": [ours], "orthogonal": True}], lr=0.01, momentum=0.9, weight_decay=0.1)
    other = torch.optim.Muon(
        [theirs], lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    for seed in range(3):
        drawn = torch.randn(12, 30, generator=torch.Generator().manual_seed(seed))
        ours.grad, theirs.grad = drawn.clone(), drawn.clone()
        mine.step()
        other.step()
    moved = (theirs - start).detach().norm()
    assert float((ours - theirs).detach().norm() / moved) < 0.02
    assert float(moved) > 0.05


def test_what_is_no_hidden_matrix_is_trained_as_by_adamw() -> None:
    model, reference = net(), net()
    ours, theirs = (
        build(model, weight_decay=0.05),
        optimizer_for(reference, TrainConfig(optimizer="adamw", lr=0.01, weight_decay=0.05)),
    )
    for seed in range(3):
        give_gradients(model, seed)
        give_gradients(reference, seed)
        ours.step()
        theirs.step()
    hidden, wanted = hidden_matrices(model), dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        same = torch.allclose(parameter, wanted[name], rtol=1e-5, atol=1e-6)
        assert same == (parameter not in hidden), name


def test_its_state_goes_through_a_checkpoint_to_the_bit() -> None:
    model = net()
    optimizer = build(model)
    give_gradients(model, 1)
    optimizer.step()
    copied = {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}
    assert {key.split("/")[0] for key in copied} == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}
    assert len([key for key in copied if "conv2" in key]) == 8  # of a filter its momentum alone
    other = net()
    other.load_state_dict(model.state_dict())
    resumed = build(other)
    load_optimizer_tensors(other, resumed, copied)
    for each, its in ((model, optimizer), (other, resumed)):
        give_gradients(each, 2)
        its.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_step_that_overflowed_changes_neither_weights_nor_state() -> None:
    model = net()
    optimizer = Muon(split_groups(model, [{"params": [*model.parameters()]}]), lr=0.01, weight_decay=0.1, fused=True)

    def tensors() -> dict[str, Tensor]:
        named = {name: p.detach().clone() for name, p in model.named_parameters()}
        return named | {name: value.clone() for name, value in optimizer_tensors(model, optimizer).items()}

    give_gradients(model, 1)
    optimizer.step()
    before = tensors()
    give_gradients(model, 2)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.view(-1)[0] = torch.inf
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    after = tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_parts_of_matrices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.mode is fsdp but train\.optimizer is muon.*use ddp"):
        load_config({"train": {"optimizer": "muon"}, "parallel": {"mode": "fsdp"}})
