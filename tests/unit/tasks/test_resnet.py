"""The ResNets: shapes, published names, initialisation, and checkpointing that changes memory and nothing else."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flatout.errors import ConfigError
from flatout.tasks.classification.models import build_model
from flatout.tasks.classification.resnet import BasicBlock, Bottleneck, ResNet, Stem, resnet


def torchvision_names(depths: tuple[int, ...], convolutions: int, shortcut_in_layer1: bool) -> set[str]:
    """What `torchvision.models.resnetNN().state_dict()` holds, spelled out from its documented scheme."""

    def norm(name: str) -> list[str]:
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for layer, depth in enumerate(depths, 1):
        for block in range(depth):
            prefix = f"layer{layer}.{block}"
            for index in range(1, convolutions + 1):
                names += [f"{prefix}.conv{index}.weight", *norm(f"{prefix}.bn{index}")]
            if block == 0 and (layer > 1 or shortcut_in_layer1):
                names += [f"{prefix}.downsample.0.weight", *norm(f"{prefix}.downsample.1")]
    return set(names)


@pytest.mark.parametrize(
    ("name", "depths", "convolutions", "parameters"),
    [
        ("resnet18", (2, 2, 2, 2), 2, 11_689_512),
        ("resnet34", (3, 4, 6, 3), 2, 21_797_672),
        ("resnet50", (3, 4, 6, 3), 3, 25_557_032),
    ],
)
def test_published_weights_fit(name: str, depths: tuple[int, ...], convolutions: int, parameters: int) -> None:
    with torch.device("meta"):
        model = resnet(name, 1000)
        logits = model.eval()(torch.zeros(2, 3, 224, 224))
    assert set(model.state_dict()) == torchvision_names(depths, convolutions, shortcut_in_layer1=convolutions == 3)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert logits.shape == (2, 1000)


@pytest.mark.parametrize(("stem", "side"), [("small", 32), ("patch", 8), ("standard", 8)])
def test_what_resolution_the_stems_keep(stem: Stem, side: int) -> None:
    model = resnet("resnet18", 10, stem=stem, width=0.25).eval()
    seen: list[torch.Size] = []
    model.maxpool.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(torch.zeros(1, 3, 32, 32))
    assert seen == [(1, 16, side, side)]


@pytest.mark.parametrize(("width", "channels"), [(0.5, 32), (1.0, 64), (0.01, 8), (1.1, 72), (2.0, 128)])
def test_width_scales_every_channel_to_a_multiple_of_eight(width: float, channels: int) -> None:
    with torch.device("meta"):
        model = resnet("resnet50", 7, width=width)
    assert model.conv1.out_channels == channels
    assert all(m.out_channels % 8 == 0 for m in model.modules() if isinstance(m, nn.Conv2d))
    assert model.fc.out_features == 7


def test_other_channel_counts_go_in() -> None:
    assert resnet("resnet18", 4, stem="small", width=0.125, in_channels=1)(torch.zeros(2, 1, 16, 16)).shape == (2, 4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_residuals_start_at_zero_and_filters_at_kaiming_fan_out(name: str) -> None:
    torch.manual_seed(0)
    model = resnet(name, 10)
    blocks = [m for m in model.modules() if isinstance(m, BasicBlock | Bottleneck)]
    assert all(not block.last_norm.weight.any() for block in blocks)
    assert sum(not m.weight.any() for m in model.modules() if isinstance(m, nn.BatchNorm2d)) == len(blocks)
    filters = model.layer4[1].conv2.weight
    assert filters.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)


def trained_steps(checkpointing: bool, context: Callable[[], Any]) -> tuple[ResNet, list[Tensor]]:
    torch.manual_seed(0)
    model = resnet("resnet50", 5, stem="small", width=0.125)
    for parameter in model.parameters():  # residuals that start at zero would hide wrong gradients inside them
        if not parameter.any():
            nn.init.constant_(parameter, 0.5)
    model.checkpointing = checkpointing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(2):
        images, labels = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
        optimizer.zero_grad()
        with context():
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, losses


@pytest.mark.parametrize(
    "context",
    [lambda: torch.autocast("cpu", enabled=False), lambda: torch.autocast("cpu", dtype=torch.bfloat16)],
    ids=["fp32", "bf16"],
)
def test_checkpointing_changes_no_bit(context: Callable[[], Any]) -> None:
    plain, plain_losses = trained_steps(False, context)
    frugal, frugal_losses = trained_steps(True, context)
    assert torch.equal(torch.stack(plain_losses), torch.stack(frugal_losses))
    for (name, a), b in zip(plain.named_parameters(), frugal.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad), name
    for (name, value), other in zip(plain.state_dict().items(), frugal.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    assert frugal.layer1[0].bn1.num_batches_tracked == 2


def test_checkpointing_leaves_the_same_buffer_objects_in_place() -> None:
    model = resnet("resnet18", 5, stem="small", width=0.125)
    model.checkpointing = True
    before = {name: id(buffer) for name, buffer in model.named_buffers()}
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == before


def test_checkpointing_with_frozen_statistics_uses_them_in_both_passes() -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = resnet("resnet18", 5, stem="small", width=0.125).eval()
        model.checkpointing = checkpointing
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
        assert model.conv1.weight.grad is not None
        gradients.append(model.conv1.weight.grad)
    assert torch.equal(*gradients)


def saved_bytes(checkpointing: bool) -> int:
    """Activation bytes the graph holds between forward and backward, each storage once, parameters left out."""
    model = resnet("resnet18", 5, stem="small", width=0.25)
    model.checkpointing = checkpointing
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(torch.randn(4, 3, 32, 32))
    return sum(held.values())


def test_checkpointing_holds_fewer_activations() -> None:
    # The checkpoint's own inner hooks keep a block's tensors away from ours; ours then see the blocks' inputs only.
    model_input_bytes = 4 * 3 * 32 * 32 * 4
    plain, frugal = saved_bytes(False), saved_bytes(True)
    assert model_input_bytes < frugal < plain / 2


def test_validation_does_not_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("recomputation prepared without a backward to come")

    monkeypatch.setattr("flatout.tasks.classification.resnet.checkpoint", refuse)
    model = resnet("resnet18", 5, stem="small", width=0.125)
    model.checkpointing = True
    with torch.no_grad():
        model.eval()(torch.randn(2, 3, 16, 16))


def test_the_registry_builds_our_own() -> None:
    model = build_model("resnet34", 12, stem="small", width=0.125, checkpointing=True)
    assert isinstance(model, ResNet)
    assert model.checkpointing
    assert model.fc.out_features == 12
    assert isinstance(model.maxpool, nn.Identity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "did you mean resnet18"),
        ({"name": "tim:resnet50"}, "did you mean timm"),
        ({"name": "resnet18", "stem": "tiny"}, r"model\.stem is 'tiny'"),
        ({"name": "resnet18", "width": 0.0}, r"model\.width is 0"),
        ({"name": "resnet18", "classes": 0}, "at least 1 class"),
        ({"name": "timm:resnet50", "width": 0.5}, "do not apply"),
        ({"name": "torchvision:resnet50", "stem": "small"}, "do not apply"),
    ],
)
def test_the_registry_explains_a_wrong_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(**{"classes": 10, **arguments})


@pytest.mark.parametrize("name", ["timm:resnet50", "torchvision:resnet50"])
def test_a_missing_package_comes_with_its_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("timm", "torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'flatout\[models\]'"):
        build_model(name, 10)


class FakeTimmModel(nn.Module):
    recomputes = False

    def set_grad_checkpointing(self, enable: bool) -> None:
        self.recomputes = enable


def fake_timm(model: nn.Module) -> ModuleType:
    module = ModuleType("timm")
    module.__dict__.update(
        __version__="1.0",
        is_model=lambda name: name == "vit_tiny",
        list_models=lambda: ["vit_tiny"],
        create_model=lambda name, pretrained, num_classes: model,
    )
    return module


def test_timm_models_checkpoint_where_timm_can(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeTimmModel()
    monkeypatch.setitem(sys.modules, "timm", fake_timm(model))
    assert build_model("timm:vit_tiny", 10, checkpointing=True) is model
    assert model.recomputes
    with pytest.raises(ConfigError, match="did you mean vit_tiny"):
        build_model("timm:vit_tyny", 10)
    monkeypatch.setitem(sys.modules, "timm", fake_timm(nn.Linear(1, 1)))
    with pytest.raises(ConfigError, match="cannot recompute"):
        build_model("timm:vit_tiny", 10, checkpointing=True)


def test_torchvision_models_do_not_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    built = nn.Linear(1, 1)
    models = SimpleNamespace(list_models=lambda module: ["vgg11"], get_model=lambda name, weights, num_classes: built)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    assert build_model("torchvision:vgg11", 10) is built
    with pytest.raises(ConfigError, match="cannot recompute"):
        build_model("torchvision:vgg11", 10, checkpointing=True)
    with pytest.raises(ConfigError, match="did you mean vgg11"):
        build_model("torchvision:vgg1", 10)
