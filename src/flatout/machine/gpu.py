"""NVIDIA GPUs by NVML. What a card, a driver or a virtual GPU does not tell is None."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from flatout.machine.sampler import Cell

_NOT_AVAILABLE = (2**64 - 1, 2**32 - 1)
_REASONS = {
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
}
"""Bits of the clocks' event reasons; idle (1) is no reason to worry."""


def reason_names(bits: int) -> str:
    """Why the clock is below its maximum: names joined by +, or "none"."""
    return "+".join(name for bit, name in _REASONS.items() if bits & bit) or "none"


def visible_cards(environment: Mapping[str, str] = os.environ, nvml: Any = None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name for a child: what it names for us, else the UUID of each card. Not numbers:
    CUDA and NVML count in different orders."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip() not in ("", "-1")]
    nvml = nvml or import_module("pynvml")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
        return [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except nvml.NVMLError:  # no driver, no card
        return []


class GpuReader:
    """The devices that training uses, in its order, numbered from `first` on; without `uuids` all that NVML lists."""

    def __init__(self, uuids: Sequence[str] | None = None, nvml: Any = None, first: int = 0) -> None:
        self._first = first
        if nvml is None:
            nvml = import_module("pynvml")  # 50 ms, and only where there is a GPU
        self._nvml = nvml
        nvml.nvmlInit()
        if uuids is None:
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]
        else:
            self._handles = [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]

    def describe(self) -> dict[str, Any]:
        return {"gpus": [self._description(handle) for handle in self._handles]}

    def _description(self, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        return {
            "name": self._ask(nvml.nvmlDeviceGetName, handle),
            "memory_bytes": self._number(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "sm_clock_max_mhz": self._number(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "power_limit_watts": _watts(self._number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        }

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        row: dict[str, Cell] = {}
        for at, handle in enumerate(self._handles, self._first):
            row |= {f"gpu{at}_{name}": value for name, value in self._cells(handle).items()}
        return row

    def _cells(self, handle: Any) -> dict[str, Cell]:
        nvml = self._nvml
        per_cent = self._number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        reasons = self._number(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:  # the name that drivers before 535 know
            reasons = self._number(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return {
            "utilization": per_cent / 100 if per_cent is not None and 0 <= per_cent <= 100 else None,
            "memory_bytes": self._number(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "power_watts": _watts(self._number(nvml.nvmlDeviceGetPowerUsage, handle)),
            "sm_clock_mhz": self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "temperature_celsius": self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle": None if reasons is None else reason_names(reasons),
        }

    def _number(self, call: Callable[..., Any], *arguments: Any) -> int | None:
        value = self._ask(call, *arguments)
        return None if value is None or value in _NOT_AVAILABLE else int(value)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError:  # not supported here, or the device is gone
            return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
