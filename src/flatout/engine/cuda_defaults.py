"""What a CUDA device gets that nobody has to ask for: 16-bit arithmetic, TF32, kernels chosen by measuring.
Nothing here changes what an Apple GPU or an emulated device does, nor a CPU unless speedups is auto."""

from typing import Any

import torch

from flatout.config.schema import Config
from flatout.decisions import compute as decisions
from flatout.engine.devices import Device


def choose_precision(config: Config, device: Device) -> str:
    """What train.precision stands for on this device: fp32, bf16 or fp16. Refuses bf16 where it is only emulated."""
    return decisions.choose_precision(config, device.facts).value


def with_precision(config: Config, precision: str) -> Config:
    """The same configuration with what train.precision stands for."""
    train = config.train.model_copy(update={"precision": precision})
    return config.model_copy(update={"train": train})


def prepare_cuda(tf32: bool) -> None:
    """Set torch's switches for CUDA kernels, once per process."""
    torch.backends.cudnn.benchmark = True  # batches keep their shape: the search is paid once
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def describe_arithmetic(config: Config, device: Device) -> dict[str, Any]:
    """As torch is set up by now; None where the device has no such thing."""
    cuda = device.kind == "cuda"
    return {
        "precision": choose_precision(config, device),
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "cudnn_benchmark": torch.backends.cudnn.benchmark if cuda else None,
    }


def say_arithmetic(config: Config, device: Device) -> list[str]:
    """One line for the log of a run whose numbers are not all of 24 bits: on CUDA fp32 need not mean that."""
    precision, kernels = choose_precision(config, device), decisions.choose_kernels(config, device.facts)
    said = []
    if device.kind == "cpu" and precision != "fp32":
        said.append(f"arithmetic: {precision} (train.precision=fp32 for all 24 bits)")
    if kernels.value == "fused":
        said.append(f"layers: {kernels.reason} (train.kernels=torch for those of torch)")
    elif config.train.kernels == "fused":
        said.append(f"train.kernels is fused, but torch computes: {kernels.reason}")
    if device.kind != "cuda":
        return said
    rest = "TF32 (train.tf32=false for all 24 bits)" if config.train.tf32 else "fp32"
    return [*said, f"arithmetic: {rest if precision == 'fp32' else f'{precision}, and {rest} in what stays fp32'}"]
