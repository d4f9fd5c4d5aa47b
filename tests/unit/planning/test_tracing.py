"""What a traced step does and holds, against what is known of small models by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flatout.planning.tracing import CannotTrace, Step, trace, traced_peak
from flatout.planning.work import TracedWork
from flatout.tasks.classification.models import build_model


def linear_step(precision: str = "fp32", optimizer: bool = True) -> Step:
    return Step(
        lambda: nn.Linear(256, 512, bias=False),
        lambda model, batch: model(torch.zeros(batch, 256)).float().pow(2).mean(),
        (lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)) if optimizer else None,
        precision,
    )


def image_step(name: str = "resnet18", precision: str = "fp32", checkpointing: bool = False, cuda: bool = True) -> Step:
    def loss(model: nn.Module, batch: int) -> torch.Tensor:
        return F.cross_entropy(model(torch.zeros(batch, 3, 64, 64)).float(), torch.zeros(batch, dtype=torch.long))

    return Step(
        lambda: build_model(name, 10, checkpointing=checkpointing),
        loss,
        lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        precision,
        cuda=cuda,
    )


def test_a_linear_layer_has_the_flops_of_its_products():
    work = trace(linear_step(), (8, 16))
    # forward and the weights' gradient; the input needs none
    assert work.flops(16) == 2 * 2 * 16 * 256 * 512
    assert work.parameters == 256 * 512


def test_weights_gradients_and_momentum_are_counted_by_part():
    peak = traced_peak(linear_step(), 4)
    weights = 4 * 256 * 512
    assert peak["weights"] == weights
    assert peak["optimizer"] == weights
    assert peak["gradients"] <= weights


def test_sixteen_bits_halve_the_traffic_of_activations():
    wide, narrow = (trace(image_step(precision=precision), (8, 32)) for precision in ("fp32", "fp16"))
    assert 0.4 < narrow.memory["activations"].per_sample / wide.memory["activations"].per_sample < 0.7
    assert any(each.sixteen_bit for each in narrow.kernels)
    assert not any(each.sixteen_bit for each in wide.kernels)


def test_checkpointing_holds_less_and_computes_the_forward_pass_again():
    plain, recomputing = (trace(image_step(checkpointing=each), (32, 256)) for each in (False, True))
    assert recomputing.peak().at(256) < 0.85 * plain.peak().at(256)
    assert 1.2 < recomputing.flops(256) / plain.flops(256) < 1.4


def test_grouped_convolutions_count_their_groups_in_the_gradient_too():
    def step(groups: int) -> Step:
        return Step(
            lambda: nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=groups)),
            lambda model, batch: model(torch.zeros(batch, 3, 8, 8)).mean(),
        )

    def flops(groups: int) -> float:
        kernels = trace(step(groups), (2, 4)).kernels
        return sum(
            each.count * each.flops.at(4) for each in kernels if each.kind in ("depthwise", "conv") and each.width != 3
        )

    assert flops(64) * 64 == pytest.approx(flops(1), rel=0.01)


def test_dropout_keeps_one_byte_an_element_as_on_cuda():
    def step(cuda: bool) -> Step:
        return Step(
            lambda: nn.Sequential(nn.Linear(8, 1024), nn.Dropout(0.5)),
            lambda model, batch: model(torch.zeros(batch, 8)).sum(),
            cuda=cuda,
        )

    cuda, cpu = (sum(traced_peak(step(each), 1024).values()) for each in (True, False))
    assert cpu - cuda == pytest.approx(3 * 1024 * 1024, rel=0.05)


def test_a_model_that_needs_values_of_its_tensors_is_refused_with_a_reason():
    class Reads(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    with pytest.raises(CannotTrace) as caught:
        trace(Step(lambda: Reads(4, 4), lambda model, batch: model(torch.zeros(batch, 4)).sum()), (2, 4))
    assert "\n" not in str(caught.value)


def test_a_constructor_that_reads_values_is_traced_all_the_same():
    class Depth(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*(nn.Linear(4, 4) for _ in range(int(torch.linspace(0, 3, 4)[-1].item()))))

    work = trace(Step(Depth, lambda model, batch: model(torch.zeros(batch, 4)).sum()), (2, 4))
    assert work.parameters == 3 * (16 + 4)


def test_work_survives_being_stored():
    work = trace(linear_step(), (8, 16))
    assert TracedWork.from_dict(work.to_dict()) == work


def test_the_line_through_two_batches_meets_a_third():
    """Peaks of a convolutional model grow in a straight line, so that the largest batch can be solved for."""
    work = trace(image_step(), (32, 256))
    assert work.peak().at(96) == pytest.approx(sum(traced_peak(image_step(), 96).values()), rel=0.02)
