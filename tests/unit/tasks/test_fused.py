"""Fused layers: equal to torch's where arithmetic is exact, and as near to float64 as torch's bf16 where it is not."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flatout.config.loading import load_config
from flatout.data.pixels.views import SHIPPED
from flatout.engine.channels_last import to_channels_last
from flatout.engine.devices import choose_device
from flatout.engine.learner import build_learner
from flatout.engine.parameters import freeze
from flatout.errors import ConfigError
from flatout.tasks.classification import fused
from flatout.tasks.classification.models import build_model
from flatout.tasks.classification.resnet import ResNet
from flatout.tasks.classification.task import Classification

pytestmark = pytest.mark.skipif(not fused.SUPPORTED, reason="not compiled, or no AVX512_BF16")


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def whole(least: int, most: int, *shape: int) -> Tensor:
    return torch.randint(least, most + 1, shape).float()


def pack(x: Tensor) -> Tensor:
    """[samples, channels, rows, columns] as native.h says."""
    samples, channels, rows, columns = x.shape
    filled = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -samples % fused.GROUP))
    shaped = filled.reshape(-1, fused.GROUP, channels // 2, 2, rows, columns)
    return shaped.permute(0, 4, 5, 2, 1, 3).contiguous().bfloat16()


def unpack(x: Tensor, samples: int) -> Tensor:
    groups, rows, columns, pairs = x.shape[:4]
    return x.permute(0, 4, 3, 5, 1, 2).reshape(groups * fused.GROUP, 2 * pairs, rows, columns)[:samples].float()


def layer(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> fused.Layer:
    """Of whole numbers, and a norm that changes nothing: every sum is exact in bf16 and in fp32."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    conv.weight.data = whole(-1, 1, *conv.weight.shape)
    norm = nn.BatchNorm2d(outputs, eps=0.0).eval()
    return conv, norm


SHAPES = [
    (5, 24, 24, 3, 1, 1, 16, 16),
    (33, 24, 48, 3, 2, 1, 6, 6),
    (32, 48, 24, 1, 2, 0, 5, 7),
    (40, 8, 16, 3, 1, 1, 2, 2),
    (7, 64, 8, 1, 1, 0, 3, 3),
    (3, 40, 40, 3, 2, 1, 1, 1),
    (64, 16, 72, 3, 1, 1, 1, 5),
]


@pytest.mark.parametrize(("samples", "inputs", "outputs", "kernel", "stride", "padding", "rows", "columns"), SHAPES)
def test_a_layer_is_that_of_torch_to_the_bit_where_sums_are_exact(
    samples: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int, rows: int, columns: int
) -> None:
    torch.manual_seed(0)
    conv, norm = layer(inputs, outputs, kernel, stride, padding)
    x = (whole(0, 15, samples, inputs, rows, columns) == 1).float() * whole(-1, 1, samples, inputs, rows, columns)
    x.requires_grad_()
    z = conv(x)
    residual = whole(-2, 2, *z.shape).requires_grad_()
    expected = F.relu(norm(z) + residual)
    gradient = (whole(0, 15, *z.shape) == 1).float()
    parameters = [conv.weight, norm.weight, norm.bias]
    expected_gradients = torch.autograd.grad(expected, [x, residual, *parameters], gradient)
    packed = pack(x.detach()).requires_grad_()
    more = pack(residual.detach()).requires_grad_()
    y = fused._conv_norm(packed, (conv, norm), samples, residual=more)
    assert torch.equal(unpack(y, samples), expected.bfloat16().float())
    gradients = torch.autograd.grad(y, [packed, more, *parameters], pack(gradient))
    found = [unpack(gradients[0], samples), unpack(gradients[1], samples), *gradients[2:]]
    for name, here, there in zip(("x", "residual", "weight", "scale", "shift"), found, expected_gradients, strict=True):
        assert torch.equal(here, there.bfloat16().float() if name in ("x", "residual") else there), name


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(7, 2, 3), (3, 1, 1), (4, 4, 0)])
@pytest.mark.parametrize(("samples", "rows", "columns"), [(5, 16, 18), (35, 9, 11), (2, 33, 4)])
def test_the_stem_is_that_of_torch_where_sums_are_exact(
    kernel: int, stride: int, padding: int, samples: int, rows: int, columns: int
) -> None:
    torch.manual_seed(0)
    conv, norm = layer(3, 24, kernel, stride, padding)
    images = whole(-1, 1, samples, 3, rows, columns)
    expected = F.relu(norm(conv(images)))
    gradient = (whole(0, 7, *expected.shape) == 1).float()
    (expected_gradient,) = torch.autograd.grad(expected, conv.weight, gradient)
    for layout in (torch.contiguous_format, torch.channels_last):
        y = fused._stem(images.contiguous(memory_format=layout), (conv, norm))
        assert torch.equal(unpack(y, samples), expected)
        assert torch.equal(torch.autograd.grad(y, conv.weight, pack(gradient))[0], expected_gradient)


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (7, 5), (1, 2)])
def test_pooling_takes_what_torch_takes(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    x = whole(0, 3, 40, 8, rows, columns).requires_grad_()  # many are equal: the first of them counts
    expected = F.max_pool2d(x, 3, 2, padding=1)
    gradient = whole(-2, 2, *expected.shape)
    (expected_gradient,) = torch.autograd.grad(expected, x, gradient)
    packed = pack(x.detach()).requires_grad_()
    y = fused._Pool.apply(packed)
    assert torch.equal(unpack(y, 40), expected)
    (found,) = torch.autograd.grad(y, packed, pack(gradient))
    assert torch.equal(unpack(found, 40), expected_gradient)


@pytest.mark.parametrize("samples", [2, 32, 45])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_are_those_of_the_batch(samples: int, momentum: float | None) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16, momentum=momentum)
    conv.weight.data = conv.weight.data.bfloat16().float()
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.uniform_(norm.bias, -1, 1)
    exact = copy.deepcopy(nn.Sequential(conv, norm)).double()
    x = (3 + torch.randn(samples, 8, 4, 4)).bfloat16().double().requires_grad_()
    expected = exact(x)
    gradient = torch.randn(expected.shape).bfloat16().double()
    expected_gradients = torch.autograd.grad(expected, [x, exact[1].weight, exact[1].bias], gradient)
    packed = pack(x.detach()).requires_grad_()
    y = fused._conv_norm(packed, (conv, norm), samples, relu=False)  # whose mask would be a jump
    gradients = torch.autograd.grad(y, [packed, norm.weight, norm.bias], pack(gradient.float()))
    assert distance(unpack(y, samples), expected) < 0.01
    for here, there in zip((unpack(gradients[0], samples), *gradients[1:]), expected_gradients, strict=True):
        assert distance(here, there) < 0.01
    assert distance(norm.running_mean, exact[1].running_mean) < 1e-3
    assert distance(norm.running_var, exact[1].running_var) < 5e-3
    assert norm.num_batches_tracked == 1
    filled = unpack(y, len(y) * fused.GROUP)[samples:]
    assert not filled.any()  # they would count in the statistics of the next layer


def test_a_statistic_that_is_no_number_is_kept_as_such() -> None:
    conv, norm = layer(8, 16, 1, 1, 0)
    x = torch.randn(3, 8, 2, 2)
    x[1, 2, 0, 1] = float("inf")
    nn.init.ones_(conv.weight)
    fused._conv_norm(pack(x), (conv, norm.train()), 3)
    assert norm.running_var is not None
    assert norm.running_var.isnan().all()  # as torch's: a variance of zero would hide it


def test_one_value_has_no_statistics_in_training() -> None:
    """It is the last batch of a data set, and pictures that have shrunk to one place."""
    model = fused_of(network("resnet18", "standard", 0.125))
    before = copy.deepcopy(dict(model.layer4[1].named_buffers()))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 3, 32, 32))
    assert all(torch.equal(each, before[name]) for name, each in model.layer4[1].named_buffers())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model.eval()(torch.randn(1, 3, 32, 32)).isfinite().all()


@pytest.mark.parametrize(
    ("stem", "shape"),
    [("standard", (2, 1, 32, 32)), ("small", (2, 3, 0, 8)), ("patch", (2, 3, 3, 8)), ("patch", (2, 3, 8, 3))],
)
def test_images_that_do_not_fit_are_refused_by_torch(stem: str, shape: tuple[int, ...]) -> None:
    model = fused_of(network("resnet18", stem, 0.125)).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError):
        model(torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_that_are_not_fp32_are_left_to_torch(dtype: torch.dtype) -> None:
    first, images = nn.Conv2d(3, 8, 3, 1, 1), torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused.can_compute(images, first)
        assert not fused.can_compute(images, first.to(dtype))


def test_another_model_of_an_own_task_is_refused_in_one_line() -> None:
    task = Classification(load_config({"task": "./own.py:open_own"}).config, 5, SHIPPED["train-64"], SHIPPED["eval-64"])
    with pytest.raises(ConfigError, match=r"the task ./own\.py:open_own builds a Linear .* use train\.kernels=torch"):
        task.fuse_layers(nn.Linear(2, 2))


def test_a_task_that_cannot_fuse_is_not_said_to() -> None:
    class Plain:
        def build_model(self) -> nn.Module:
            return nn.Linear(2, 2)

    train = {"kernels": "fused", "precision": "bf16"}
    config = load_config({"task": "./own.py:open_own", "train": train}).config
    with pytest.raises(ConfigError, match="does not say how"):
        build_learner(cast(Any, Plain()), config, choose_device("cpu"))


def distance(here: Any, there: Any) -> float:
    return float(((here.double() - there.double()).norm() / there.double().norm()).detach())


def network(name: str, stem: str, width: float) -> ResNet:
    torch.manual_seed(0)
    model = build_model(name, 11, stem, width)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return cast(ResNet, to_channels_last(model, "cpu"))


def gradients(model: ResNet, images: Tensor, labels: Tensor, bf16: bool = True) -> tuple[Tensor, Tensor]:
    """Logits, and all gradients in one line."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(images)
    F.cross_entropy(logits.float() if bf16 else logits, labels).backward()
    line = torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])
    return logits.detach().double(), line


def fused_of(model: ResNet) -> ResNet:
    other = copy.deepcopy(model)
    other.fused = True
    return other


NETWORKS = [
    ("resnet18", "standard", 0.375, 64, 40),
    ("resnet18", "small", 0.125, 32, 33),
    ("resnet34", "patch", 0.25, 48, 8),
    ("resnet50", "standard", 0.125, 66, 20),
]


@pytest.mark.parametrize(("name", "stem", "width", "side", "samples"), NETWORKS)
def test_a_network_is_as_exact_as_in_the_bf16_of_torch(
    name: str, stem: str, width: float, side: int, samples: int
) -> None:
    plain = network(name, stem, width)
    exact, mine = copy.deepcopy(plain).double(), fused_of(plain)
    images, labels = torch.randn(samples, 3, side, side), torch.randint(0, 11, (samples,))
    logits, line = gradients(cast(ResNet, exact), images.double(), labels, bf16=False)
    torchs = [distance(a, b) for a, b in zip(gradients(plain, images, labels), (logits, line), strict=True)]
    here = [distance(a, b) for a, b in zip(gradients(mine, images, labels), (logits, line), strict=True)]
    assert 0 < here[0] <= 1.3 * torchs[0]
    assert 0 < here[1] <= 1.3 * torchs[1]
    for mode in (exact, plain, mine):
        mode.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        judged, by_torch = mine(images), plain(images)
    truth = exact(images.double())
    assert distance(judged, truth) <= 1.5 * distance(by_torch, truth)
    assert list(mine.state_dict()) == list(plain.state_dict())


def test_threads_change_no_bit() -> None:
    found = []
    for count in (1, 2, 3):
        with threads(count):
            model = fused_of(network("resnet18", "standard", 0.375))
            torch.manual_seed(1)
            found.append(gradients(model, torch.randn(70, 3, 32, 32), torch.randint(0, 11, (70,))))
    convolutions = [each[0] for each in found]
    assert all(torch.equal(each, convolutions[0]) for each in convolutions[1:])
    # the last layer is torch's, and sums its products as it likes
    assert all(distance(each[1], found[0][1]) < 1e-6 for each in found[1:])


def test_checkpointing_changes_memory_and_nothing_else() -> None:
    def recomputing(model: ResNet) -> ResNet:
        model.checkpointing = True
        return model

    models = [
        fused_of(network("resnet18", "standard", 0.25)),
        recomputing(fused_of(network("resnet18", "standard", 0.25))),
    ]
    torch.manual_seed(1)
    images, labels = torch.randn(6, 3, 64, 64), torch.randint(0, 11, (6,))
    kept, recomputed = (gradients(model, images, labels) for model in models)
    assert all(torch.equal(a, b) for a, b in zip(kept, recomputed, strict=True))
    for (name, a), b in zip(models[0].named_buffers(), models[1].buffers(), strict=True):
        assert torch.equal(a, b), name


def test_frozen_parts_stay_and_the_rest_learns() -> None:
    model = fused_of(network("resnet18", "standard", 0.25))
    freeze(model, ["conv1", "bn1", "layer1", "layer3.0.bn1", "layer4.0.conv1"])
    before = copy.deepcopy(dict(model.named_buffers()))
    gradients(model, torch.randn(6, 3, 64, 64), torch.randint(0, 11, (6,)))
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    changed = {name.rpartition(".")[0] for name, b in model.named_buffers() if not torch.equal(b, before[name])}
    assert "layer2.0.bn1" in changed
    assert not changed & {"bn1", "layer1.0.bn1", "layer3.0.bn1"}


def _traced(model: ResNet, images: Tensor) -> Any:
    return torch.export.export(model, (images,)).module()(images)


@pytest.mark.parametrize("compute", [ResNet.__call__, _traced], ids=["fp32", "exported"])
def test_what_is_not_in_bf16_is_left_to_torch(compute: Callable[[ResNet, Tensor], Tensor]) -> None:
    plain = network("resnet18", "standard", 0.125).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(compute(fused_of(plain).eval(), images), plain(images))
