"""What a CUDA device gets by default. Cards are fakes of torch.cuda's answers; tensors on them are fake tensors."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from flatout.commands import tune
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.engine.cuda_defaults import choose_precision, say_arithmetic
from flatout.engine.devices import Device, choose_device, grow_segments
from flatout.engine.optimizers import describe_optimizer, load_optimizer_tensors, optimizer_for, optimizer_tensors
from flatout.errors import ConfigError
from flatout.training.environment import describe_environment
from flatout.training.setup import prepare_compute

CARDS = {"NVIDIA A10G": (8, 6), "Tesla T4": (7, 5), "Tesla P100": (6, 0), "GeForce GTX 1080": (6, 1)}


@pytest.fixture
def _flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    flags = [(torch.backends.cudnn, "benchmark"), (torch.backends.cudnn, "allow_tf32"),
             (torch.backends.cuda.matmul, "allow_tf32")]  # fmt: skip
    before, threads = [getattr(*each) for each in flags], torch.get_num_threads()
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    yield
    for (where, name), value in zip(flags, before, strict=True):
        setattr(where, name, value)
    torch.set_num_threads(threads)


def insert(monkeypatch: pytest.MonkeyPatch, card: str) -> Device:
    capability = CARDS[card]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or capability >= (8, 0)
    )
    return choose_device("cuda")


def recipe(**train: Any) -> Config:
    return load_config({"device": "cuda", "train": train}).config


@pytest.mark.usefixtures("_flags")
@pytest.mark.parametrize(
    ("card", "auto", "tried"),
    [("NVIDIA A10G", "bf16", ["bf16", "fp16", "fp32"]), ("Tesla T4", "fp16", ["fp16", "fp32"]),
     ("Tesla P100", "fp16", ["fp16", "fp32"]), ("GeForce GTX 1080", "fp32", ["fp16", "fp32"])],
)  # fmt: skip
def test_a_card_computes_in_what_it_is_fast_in(
    card: str, auto: str, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = insert(monkeypatch, card)
    assert choose_precision(recipe(), device) == auto
    assert tune._precisions(recipe(), auto) == tried
    assert choose_precision(recipe(precision="fp32"), device) == "fp32"
    if auto == "bf16":
        assert choose_precision(recipe(precision="bf16"), device) == "bf16"
    else:
        with pytest.raises(ConfigError, match=f"{card} has no bf16 arithmetic.* use train.precision={auto}"):
            choose_precision(recipe(precision="bf16"), device)


@pytest.mark.usefixtures("_flags")
def test_auto_stays_fp32_where_16_bits_are_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    for card, mode, expected in (
        ("NVIDIA A10G", "dp", "fp32"),
        ("NVIDIA A10G", "fsdp", "bf16"),
        ("Tesla T4", "fsdp", "fp32"),
    ):
        config = load_config({"device": "cuda", "parallel": {"mode": mode, "devices": 2}}).config
        assert choose_precision(config, insert(monkeypatch, card)) == expected


def test_other_devices_compute_in_fp32_as_ever() -> None:
    for kind in ("cpu", "mps", "emulated"):
        device = Device(kind, torch.device("cpu"), kind)
        assert choose_precision(load_config({}).config, device) == "fp32"
        assert say_arithmetic(load_config({}).config, device) == []


@pytest.mark.usefixtures("_flags")
@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_said_and_switchable_and_kernels_are_searched_for(tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config, device = recipe(tf32=tf32), insert(monkeypatch, "NVIDIA A10G")
    prepare_compute(config, device)
    assert torch.backends.cudnn.benchmark
    assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == tf32
    assert torch.get_num_threads() == 1
    assert say_arithmetic(config, device) == [
        "arithmetic: bf16, and "
        + ("TF32 (train.tf32=false for all 24 bits)" if tf32 else "fp32")
        + " in what stays fp32"
    ]
    told = describe_environment(device, config)["arithmetic"]
    assert told == {"precision": "bf16", "tf32": tf32, "cudnn_benchmark": True}


@pytest.mark.usefixtures("_flags")
def test_a_cpu_keeps_its_flags_and_threads() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    prepare_compute(load_config({"threads": 2}).config, choose_device("cpu"))
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == before == (False, False)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("_flags")
def test_segments_grow_unless_somebody_has_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr("flatout.engine.devices.grow_segments", lambda _: order.append("allocator"))
    device = insert(monkeypatch, "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: order.append("first use") or "T4")
    order.clear()
    assert choose_device("auto").kind == device.kind
    assert order == ["allocator", "first use"]
    for given, expected in (({}, "expandable_segments:True"), ({"PYTORCH_CUDA_ALLOC_CONF": "x:1"}, "x:1")):
        environment = dict(given)
        grow_segments(environment)
        assert environment == {"PYTORCH_CUDA_ALLOC_CONF": expected}
    environment = {"PYTORCH_ALLOC_CONF": "x:1"}
    grow_segments(environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "x:1"}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_optimizers_are_fused_on_cuda_and_go_on_with_a_checkpoint_from_the_cpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU build of torch makes tensors that say cuda and runs kernels on them, but neither copies nor asks."""
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, **__: None)  # it has no fake kernel for this one
    monkeypatch.setattr(torch.Tensor, "copy_", lambda own, other: own)
    train = load_config({"train": {"optimizer": name}}).config.train
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(3, 4, device="cuda:0"))
        optimizer = optimizer_for(model, train)
        assert all(group["fused"] for group in describe_optimizer(optimizer)["groups"])
        for _ in range(2):  # the second time with the state of a checkpoint, which is on the CPU
            model.weight.grad = torch.empty(3, 4, device="cuda:0")
            optimizer.step()
            saved = {key: value.to("cpu") for key, value in optimizer_tensors(model, optimizer).items()}
            load_optimizer_tensors(model, optimizer, saved)
        placed = {
            key.partition("/")[0]: value.device.type for key, value in optimizer_tensors(model, optimizer).items()
        }
        assert set(placed.values()) == {"cuda"}


def test_optimizers_on_a_cpu_are_not_fused() -> None:
    (group, *_) = describe_optimizer(optimizer_for(nn.Linear(4, 3), load_config({}).config.train))["groups"]
    assert group["fused"] is None


def test_a_recipe_for_a_gpu_may_say_tf32_and_train_elsewhere() -> None:
    """probe measures loading on an emulated device."""
    assert not load_config({"train": {"tf32": False}}, {"device": "emulated"}).config.train.tf32
