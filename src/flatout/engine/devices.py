"""Where the model computes: a CPU, a GPU, or an emulated accelerator on the CPU."""

import ctypes
import os
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import dataclass

import torch

from flatout.decisions.compute import DeviceFacts, choose_device_kind, queues_work
from flatout.errors import ConfigError
from flatout.machine.cpu import cpu_flags, cpu_name
from flatout.tasks.classification.fused import SUPPORTED

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of x86 and, the last, of ARM


@dataclass(frozen=True)
class Device:
    """The device of this process, as flatout names it and as torch does."""

    kind: str  # cpu | cuda | mps | emulated
    torch: torch.device
    name: str

    @property
    def waits(self) -> bool:
        """Whether reading a value makes the host wait for work that was only queued."""
        return queues_work(self.kind)

    @property
    def sixteen_bit(self) -> str | None:
        """The 16-bit arithmetic it has units for: bf16, or fp16 on cards before Ampere; None for neither."""
        if self.kind == "cpu" and BF16_FLAGS & cpu_flags():
            return "bf16"
        if self.kind != "cuda":
            return None
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
        capability = torch.cuda.get_device_capability(self.torch)
        return "fp16" if capability >= (7, 0) or capability == (6, 0) else None  # V100, T4; P100

    @property
    def facts(self) -> DeviceFacts:
        """What decisions need to know of it."""
        tiles = self.kind == "cpu" and "amx_bf16" in cpu_flags()
        return DeviceFacts(self.kind, self.name, self.sixteen_bit, self.kind == "cpu" and SUPPORTED, tiles)

    def wait(self) -> None:
        """Until everything that was queued is done."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.torch)
        elif self.kind == "mps":
            torch.mps.synchronize()

    def memory_peak_bytes(self) -> int | None:
        """Most memory the tensors took, or None where the device does not say."""
        return torch.cuda.max_memory_allocated(self.torch) if self.kind == "cuda" else None


def present_devices() -> dict[str, bool]:
    """What torch sees here, the one to prefer first."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}


def choose_device(wanted: str) -> Device:
    """`auto` takes cuda, then mps, then cpu; a device that is asked for by name must be there."""
    if torch.cuda.is_available():
        grow_segments(os.environ)  # before anything is allocated
    present = present_devices()
    kind = choose_device_kind(wanted, present).value
    if kind == "emulated":
        return Device("emulated", torch.device("cpu"), f"emulated accelerator on {cpu_name()}")
    if not present[kind]:
        raise ConfigError(f"device is {kind} but torch {torch.__version__} sees none here; use device: auto or cpu")
    name = torch.cuda.get_device_name() if kind == "cuda" else "Apple GPU" if kind == "mps" else cpu_name()
    return Device(kind, torch.device(kind), name)


def grow_segments(environment: MutableMapping[str, str]) -> None:
    """Let the allocator extend what it holds instead of keeping holes that no later tensor fits. torch reads this when
    the device is first used; whoever has set either name is left alone."""
    if not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & environment.keys():
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, up to blocks of 32 MiB; elsewhere nothing happens.

    By default it hands the top of the heap back to the kernel whenever tensors are freed, and each page is cleared and
    mapped again a moment later: with it kept, CPU steps took 13 % less time (benchmarks/loop_overhead.py).
    """
    trim_threshold, mmap_threshold = -1, -3  # names of mallopt's parameters
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 2**31 - 1)
