"""Low precision around fp32 weights, and a step that never applies a broken gradient."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import cross_entropy

from flatout.engine.precision import Precision, Seen, build_precision
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import resnet


def gradients(name: str) -> tuple[nn.Module, Tensor, list[Tensor]]:
    torch.manual_seed(0)
    model = resnet("resnet18", 5, stem="small", width=0.125)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(5, (8,))
    precision = build_precision(name, "cpu")
    with precision.autocast():
        loss = cross_entropy(model(images), labels)
    precision.backward(loss)
    return model, loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def test_bf16_stays_close_to_fp32_and_keeps_fp32_weights() -> None:
    _, reference_loss, reference = gradients("fp32")
    model, loss, low = gradients("bf16")
    assert loss.item() == pytest.approx(reference_loss.item(), rel=0.02)
    flat_reference, flat_low = (torch.cat([g.flatten() for g in grads]) for grads in (reference, low))
    assert torch.cosine_similarity(flat_reference, flat_low, dim=0) > 0.98
    assert not torch.equal(flat_reference, flat_low)  # it really ran in bf16
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(g.dtype == torch.float32 for g in low)


def test_autocast_chooses_the_dtype() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with build_precision(name, "cpu").autocast():
            assert layer(x).dtype == dtype


@pytest.mark.parametrize(("name", "device"), [("fp16", "cpu"), ("fp16", "mps")])
def test_fp16_without_cuda_suggests_bf16(name: str, device: str) -> None:
    with pytest.raises(ConfigError, match="use bf16"):
        build_precision(name, device)


def one_weight(gradient: float) -> tuple[nn.Parameter, torch.optim.SGD]:
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.full((4,), gradient)
    return weight, torch.optim.SGD([weight], lr=1.0)


def step(precision: Precision, optimizer: torch.optim.SGD, weight: Tensor, clip_norm: float | None = None) -> Tensor:
    """As the loop does it."""
    norm = precision.gradient_norm(optimizer, [weight], wanted=True)
    precision.step(optimizer, [weight], clip_norm, norm)
    assert norm is not None
    return norm


def test_a_step_clips_and_reports_the_norm_before() -> None:
    weight, optimizer = one_weight(3.0)
    precision = build_precision("fp32", "cpu")
    norm = step(precision, optimizer, weight, clip_norm=1.0)
    assert precision.read(torch.tensor(2.0), norm) == Seen(2.0, pytest.approx(6.0), None)
    assert weight.norm().item() == pytest.approx(1.0, rel=1e-5)


def test_a_small_gradient_is_not_scaled_up() -> None:
    weight, optimizer = one_weight(0.01)
    step(build_precision("fp32", "cpu"), optimizer, weight, clip_norm=1.0)
    assert torch.equal(weight.detach(), torch.full((4,), -0.01))


def test_without_clip_and_check_no_norm_is_computed() -> None:
    weight, optimizer = one_weight(1.0)
    assert build_precision("fp32", "cpu").gradient_norm(optimizer, [weight], wanted=False) is None


def scaled(scale: float = 1024.0) -> Precision:
    """The fp16 path with a scaler that works on a CPU, to reach its code without a GPU."""
    return Precision("fp16", "cpu", GradScaler("cpu", init_scale=scale))


def test_the_scaler_is_undone_before_clipping() -> None:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    precision = scaled()
    precision.backward((weight * 3.0).sum())
    assert weight.grad is not None
    assert weight.grad[0].item() == 3.0 * 1024
    step(precision, optimizer, weight, clip_norm=1.0)
    assert weight.norm().item() == pytest.approx(1.0, rel=1e-5)


def test_an_overflow_skips_the_step_and_lowers_the_scale() -> None:
    weight, optimizer = one_weight(float("inf"))
    precision = scaled()
    precision.backward((weight * 1.0).sum())
    step(precision, optimizer, weight, clip_norm=1.0)
    assert not weight.any()
    assert precision.scalars()["scale"] == 512.0


def test_a_logged_step_reads_the_scale() -> None:
    precision = scaled(scale=1.5e-4)
    precision.backward((one_weight(1.0)[0] * 1.0).sum())
    assert precision.read(torch.tensor(2.0), None) == Seen(2.0, None, pytest.approx(1.5e-4))


def test_the_scale_goes_through_json() -> None:
    precision = scaled()
    weight, optimizer = one_weight(float("inf"))
    precision.backward((weight * 1.0).sum())
    step(precision, optimizer, weight)
    stored = json.loads(json.dumps(precision.scalars()))
    resumed = scaled(scale=7.0)
    resumed.load_scalars(stored)
    assert resumed.scalars() == precision.scalars()


def test_without_a_scaler_there_is_nothing_to_store() -> None:
    precision = build_precision("bf16", "cpu")
    assert precision.scalars() == {}
    precision.load_scalars({"scale": 512.0})  # a run that moved from fp16 to bf16
