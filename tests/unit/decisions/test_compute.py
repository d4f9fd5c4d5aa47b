"""Where and how the model computes. Precision has its table in tests/unit/engine/test_cuda_defaults.py."""

from typing import Any

import pytest

from flatout.config.loading import load_config
from flatout.config.schema import TrainConfig
from flatout.decisions.batches import choose_batch, choose_rank
from flatout.decisions.compute import (
    DeviceFacts,
    check_monitored_interface,
    choose_device_kind,
    choose_interface,
    choose_kernels,
    choose_log_interval,
    choose_monitored_interface,
    choose_optimizer,
    choose_precision,
    choose_threads,
    fast_precisions,
    precision_is_open,
    with_precision_of,
)
from flatout.errors import ConfigError
from flatout.sampling import rank_slice

T4, A100 = DeviceFacts("cuda", "T4", "fp16"), DeviceFacts("cuda", "A100", "bf16")


def test_the_first_device_that_is_there() -> None:
    present = {"cuda": False, "mps": True, "cpu": True}
    assert choose_device_kind("auto", present).value == "mps"
    assert "no cuda" in choose_device_kind("auto", present).reason
    assert choose_device_kind("emulated", present).value == "emulated"


def test_threads_and_log_interval_depend_on_the_device() -> None:
    assert [choose_threads("auto", kind, 8).value for kind in ("cpu", "cuda", "emulated")] == [8, 1, 8]
    assert choose_threads(3, "cuda", 8).value == 3
    assert [choose_log_interval("auto", waits).value for waits in (True, False)] == [10, 1]
    assert choose_log_interval(7, True).value == 7


def test_a_run_that_goes_on_keeps_its_precision() -> None:
    left_open, said = load_config({}).config, load_config({"train": {"precision": "fp32"}}).config
    assert choose_precision(left_open, A100).value == "bf16"
    kept = choose_precision(left_open, A100, so_far="fp32")
    assert (kept.value, kept.reason) == ("fp32", "the run began with it")
    assert choose_precision(said, A100, so_far="bf16").value == "fp32"  # the recipe's own word counts
    assert (precision_is_open(left_open), precision_is_open(said)) == (True, False)
    assert with_precision_of(left_open, said).train.precision == "fp32"
    assert with_precision_of(said, left_open) == said


def test_a_cpu_with_units_for_bf16_uses_them_where_speedups_are_asked_for() -> None:
    able, other = DeviceFacts("cpu", "EPYC", "bf16"), DeviceFacts("cpu", "Xeon")
    plain, fast = load_config({}).config, load_config({"speedups": "auto"}).config
    said = load_config({"speedups": "auto", "train": {"precision": "fp32"}}).config
    assert [choose_precision(each, able).value for each in (plain, fast, said)] == ["fp32", "bf16", "fp32"]
    assert choose_precision(fast, other).value == "fp32"
    text = {"task": "translation", "speedups": "auto"}
    assert [choose_precision(load_config(text).config, each).value for each in (able, other)] == ["bf16", "fp32"]
    assert "units for bf16" in choose_precision(load_config(text).config, able).reason
    others = load_config({"speedups": "auto", "model": {"name": "timm:resnet18"}}).config
    assert choose_precision(others, able).value == "fp32"
    assert choose_precision(fast, other, so_far="bf16").value == "bf16"  # went on elsewhere


def test_fused_layers_are_for_speedups_and_where_they_can_be_had() -> None:
    able = DeviceFacts("cpu", "EPYC", "bf16", fuses=True)
    with_tiles = DeviceFacts("cpu", "Xeon", "bf16", fuses=True, multiplies_tiles=True)
    bf16 = {"kernels": "fused", "precision": "bf16"}

    def chosen(recipe: dict[str, Any], device: DeviceFacts = able) -> str:
        return choose_kernels(load_config(recipe).config, device).value

    assert [chosen({}), chosen({"speedups": "auto"}), chosen({"train": bf16})] == ["torch", "fused", "fused"]
    assert chosen({"speedups": "auto", "train": {"kernels": "torch"}}) == "torch"
    assert [chosen({"speedups": "auto"}, with_tiles), chosen({"train": bf16}, with_tiles)] == ["torch", "fused"]
    for batch, expected in ((128, "fused"), (100, "fused"), (16, "torch"), (70, "torch")):
        assert chosen({"speedups": "auto", "data": {"batch_size": batch}}) == expected
    assert (
        chosen({"speedups": "auto", "data": {"global_batch": 64}, "parallel": {"mode": "ddp", "devices": 4}}) == "torch"
    )
    assert chosen({"train": bf16, "data": {"batch_size": 16}}) == "fused"  # the recipe's own word counts
    for recipe, device, reason in (
        ({"train": bf16}, DeviceFacts("cpu", "Xeon", "bf16"), "not compiled, or this processor"),
        ({"train": bf16}, A100, "device is cuda"),
        ({"train": bf16, "model": {"name": "timm:resnet18"}}, able, "model.name is timm:resnet18"),
        ({"train": bf16, "model": {"squeeze_excite": True}}, able, "squeeze_excite"),
        ({"train": bf16 | {"compile": True}}, able, "train.compile"),
        ({"train": {"kernels": "fused"}}, able, "bf16, which train.precision is not"),
        ({"speedups": "auto", "train": {"precision": "fp32"}}, able, "bf16, which train.precision is not"),
        ({"train": bf16, "parallel": {"mode": "fsdp", "devices": 2}}, able, "parallel.mode is fsdp"),
        ({"train": bf16, "parallel": {"mode": "ddp", "devices": 2, "sync_batchnorm": True}}, able, "sync_batchnorm"),
    ):
        found = choose_kernels(load_config(recipe).config, device)
        assert found.value == "torch"
        assert reason in found.reason


def test_the_model_of_an_own_task_is_not_taken_for_a_resnet() -> None:
    """model.name is what it is by default; whether the task builds that is not known."""
    able = DeviceFacts("cpu", "EPYC", "bf16", fuses=True)
    own: dict[str, Any] = {"task": "./own.py:open_own", "speedups": "auto"}
    for recipe, precision, kernels in (
        (own, "fp32", "torch"),
        ({**own, "train": {"precision": "bf16"}}, "bf16", "torch"),
        ({**own, "train": {"precision": "bf16", "kernels": "fused"}}, "bf16", "fused"),  # the recipe's own word counts
    ):
        config = load_config(recipe).config
        assert (choose_precision(config, able).value, choose_kernels(config, able).value) == (precision, kernels)
    assert "task is ./own.py:open_own" in choose_precision(load_config(own).config, able).reason


def test_only_arithmetic_that_a_device_has_is_measured() -> None:
    assert fast_precisions(DeviceFacts("cpu")) == {"bf16"}
    assert (fast_precisions(T4), fast_precisions(A100)) == ({"fp16"}, {"bf16", "fp16"})


def test_the_arguments_of_every_optimizer() -> None:
    sgd = choose_optimizer(TrainConfig(lr=0.1, momentum=0.0), False).value
    assert sgd == {"name": "sgd", "lr": 0.1, "momentum": 0.0, "nesterov": False, "fused": None}
    adamw = choose_optimizer(TrainConfig(optimizer="adamw", lr=0.1, beta2=0.95), True).value
    assert adamw == {"name": "adamw", "lr": 0.1, "betas": (0.9, 0.95), "fused": True}
    assert choose_optimizer(TrainConfig(optimizer="lamb", lr=0.1), True).value.keys() == {
        "name",
        "lr",
        "betas",
        "fused",
    }


def test_interfaces() -> None:
    assert choose_interface("auto", lambda: "eth1", ["eth0"]).value == "eth1"
    with pytest.raises(ConfigError, match=r"parallel\.interface is 'eth9'; this machine has eth0, lo"):
        choose_interface("eth9", lambda: "eth1", ["lo", "eth0"])
    assert choose_monitored_interface("auto", "eth1", lambda: "eth2").value == "eth1"
    assert choose_monitored_interface("auto", None, lambda: None).value is None
    assert choose_monitored_interface("lo", "eth1", lambda: "eth2").value == "lo"
    check_monitored_interface("auto", [])
    with pytest.raises(ConfigError, match=r"monitor\.interface is 'eth9'"):
        check_monitored_interface("eth9", ["lo"])


def test_every_sample_of_a_global_batch_has_one_rank() -> None:
    batch = choose_batch(load_config({"data": {"path": "x", "global_batch": 10}}).config, 3, rank_slice)
    assert (batch.value, batch.unit, batch.key) == (10, "samples", "global_batch")
    assert batch.slices is not None
    assert [number for first, end in batch.slices for number in range(first, end)] == list(range(10))
    each = choose_batch(load_config({"data": {"path": "x", "batch_size": 8}}).config, 3)
    assert (each.value, each.per_rank, each.key) == (24, 8, "batch_size")
    text = {"path": "x", "source_language": "en", "target_language": "de", "batch_tokens": 64}
    tokens = choose_batch(load_config({"task": "translation", "data": text}).config, 2, rank_slice)
    assert (tokens.value, tokens.unit, tokens.key, tokens.slices) == (128, "tokens", "batch_tokens", None)


def test_rank_and_number_of_ranks_come_together() -> None:
    assert choose_rank("auto", "auto", lambda: (2, 4)) == (2, 4)
    assert choose_rank("auto", 1, lambda: (2, 4)) == (0, 1)
    assert choose_rank(1, 2, lambda: (2, 4)) == (1, 2)
    for rank, world_size in ((1, "auto"), ("auto", 2), (2, 2), (-1, 2)):
        with pytest.raises(ConfigError, match="rank is"):
            choose_rank(rank, world_size, lambda: (2, 4))
