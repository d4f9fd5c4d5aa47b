"""What a ResNet may have besides its blocks: each does what its paper says, and nothing where it is off."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flatout.config.loading import load_config
from flatout.config.sections.model import RESNETS
from flatout.data.batch import Batch
from flatout.data.pixels.views import SHIPPED
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import DEPTHS, ResNet, block_count, resnet
from flatout.tasks.classification.resnet_extras import Blur, Extras, StridedConv, residual_scales, skip_rates
from flatout.tasks.classification.task import Classification


def net(stem: Any = "small", name: str = "resnet18", **extras: bool) -> ResNet:
    torch.manual_seed(0)
    return resnet(name, 5, stem, 0.125, extras=replace(Extras(), **extras))


def images(count: int = 4, side: int = 16) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def test_the_recipe_knows_our_resnets() -> None:
    assert set(RESNETS) == set(DEPTHS)


def test_without_zero_gamma_every_norm_starts_at_one_and_all_else_is_the_same() -> None:
    with_it, without = net().state_dict(), net(zero_gamma=False).state_dict()
    different = [name for name in with_it if not torch.equal(with_it[name], without[name])]
    assert different == [f"layer{layer}.{block}.bn2.weight" for layer in (1, 2, 3, 4) for block in (0, 1)]
    assert all(bool((without[name] == 1).all()) for name in different)


def test_a_blur_keeps_what_is_even_and_takes_the_finest_checkers_out() -> None:
    even, checkers = torch.full((1, 2, 6, 6), 3.0), torch.ones(1, 2, 6, 6)
    checkers[:, :, ::2, ::2] = checkers[:, :, 1::2, 1::2] = -1.0
    assert torch.equal(Blur(2)(even), even)
    assert torch.equal(Blur(2)(checkers)[:, :, 1:-1, 1:-1], torch.zeros(1, 2, 4, 4))
    assert Blur(2, stride=2)(even).shape == (1, 2, 3, 3)


@pytest.mark.parametrize("stem", ["small", "standard"])
def test_blurring_keeps_names_and_shapes_and_makes_a_shift_matter_less(stem: str) -> None:
    plain, blurred = net(stem, zero_gamma=False), net(stem, zero_gamma=False, blur_pool=True)
    assert blurred.state_dict().keys() == plain.state_dict().keys()
    blurred.load_state_dict(plain.state_dict())
    whole = images(8, 66)
    changes = [
        float((model.eval()(whole[:, :, 1:-1, 1:-1]) - model(whole[:, :, 1:-1, 2:])).detach().norm())
        for model in (plain, blurred)
    ]
    assert changes[1] < changes[0]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_squeeze_excite_weighs_channels_and_is_trained(name: str) -> None:
    model = net(name=name, zero_gamma=False, squeeze_excite=True)
    model(images()).sum().backward()  # type: ignore[no-untyped-call]
    gates = [p for key, p in model.named_parameters() if ".se." in key]
    assert len(gates) == 4 * block_count(name)
    assert all(p.grad is not None for p in gates)
    block: Any = model.layer1[0]
    x = torch.rand(2, block.se.fc1.in_features, 3, 3)
    factors = block.se(x) / x
    assert bool(((factors > 0) & (factors < 1)).all())
    assert torch.allclose(factors, factors[:, :, :1, :1].expand_as(factors), atol=1e-5)


def test_skips_grow_in_a_line_and_keep_the_mean() -> None:
    assert skip_rates(0.5, 4).tolist() == [0.125, 0.25, 0.375, 0.5]
    scales = residual_scales(0.5, 4, 3, 1, np.arange(20_000))
    assert np.allclose((scales == 0).mean(0), skip_rates(0.5, 4), atol=0.02)
    assert np.allclose(scales.mean(0), 1, atol=0.03)


def test_who_skips_follows_from_seed_epoch_and_sample_alone() -> None:
    ids = np.array([5, 900, 17, 3])
    whole = residual_scales(0.5, 8, 1, 2, ids)
    assert np.array_equal(np.concatenate([residual_scales(0.5, 8, 1, 2, part) for part in (ids[:1], ids[1:])]), whole)
    others = [residual_scales(0.5, 8, seed, epoch, ids) for seed, epoch in ((1, 3), (2, 2))]
    assert not any(np.array_equal(whole, other) for other in others)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_sample_that_skips_every_block_only_takes_the_shortcuts(checkpointing: bool) -> None:
    model = net(zero_gamma=False).eval()
    model.checkpointing = checkpointing
    scales = torch.ones(4, 8)
    scales[0] = 0.0
    x = images()
    assert torch.equal(model(x, torch.ones(4, 8)), model(x))
    with_skips = model(x, scales)
    assert torch.equal(with_skips[1:], model(x)[1:])
    for block in (each for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for each in layer):
        block.last_norm.weight.data.zero_()
        block.last_norm.bias.data.zero_()
    assert torch.allclose(with_skips[0], model(x)[0], atol=1e-6)


def test_parts_of_a_batch_skip_what_the_whole_would() -> None:
    config = load_config({"model": {"stochastic_depth": 0.9, "width": 0.125}}).config
    task = Classification(config, 5, SHIPPED["train-64"], SHIPPED["eval-64"])
    pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
    batch = Batch(1, 0, pixels, torch.zeros(6, dtype=torch.int64), torch.arange(40, 46))
    inputs = task.to_device(batch, torch.device("cpu"))
    assert inputs.scales is not None
    assert inputs.scales.shape == (6, 8)
    pieces = [piece.scales for piece, _ in task.parts(inputs, 3)]
    assert torch.equal(torch.cat([each for each in pieces if each is not None]), inputs.scales)
    assert task.loss(task.build_model(), inputs).isfinite()


@pytest.mark.parametrize("key", ["blur_pool", "squeeze_excite"])
@pytest.mark.parametrize("name", ["timm:vit_tiny", "./net.py:Net"])
def test_others_models_have_none_of_it(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{key} is True but nothing uses it.*model\.name is resnet18"):
        load_config({"model": {"name": name, key: True}})


@pytest.mark.parametrize("side", [1, 2])
def test_bf16_gradients_of_a_stride_are_those_of_fp32(side: int) -> None:
    """torch leaves those of taps unwritten that see only padding: what the memory held before became a gradient."""
    torch.manual_seed(0)
    conv, x = StridedConv(16, 16, 3, 2, padding=1, bias=False), torch.randn(16, 16, side, side)
    gradients = []
    for low in (False, True):
        conv.zero_grad()
        remains = [torch.full((size,), math.nan) for size in (2304, 2304, 4096, 256) for _ in range(8)]
        del remains
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            made = conv(x.bfloat16() if low else x)
        made.float().square().sum().backward()
        assert conv.weight.grad is not None
        gradients.append(conv.weight.grad.clone())
    assert torch.allclose(gradients[1], gradients[0], rtol=0.05, atol=0.05 * float(gradients[0].abs().max()))
