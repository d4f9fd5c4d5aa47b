"""How long a card takes for traced kernels: a roofline for each, with efficiencies by class of kernel.

A kernel takes as long as its arithmetic or its traffic, whichever is longer (softly: near the ridge both count), plus
what every kernel costs; a step takes at least as long as the host needs to launch its kernels. Many jobs can be
computed at once, which is how the coefficients are fitted (benchmarks/planning/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.planning.cards import Card
from flatout.planning.work import Kernels, TracedWork

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

PRIORS: dict[str, float] = {
    # shares of the peak rate that large kernels reach
    "conv_16": 0.55,
    "conv_tf32": 0.5,
    "conv_32": 0.7,
    "matmul_16": 0.65,
    "matmul_tf32": 0.65,
    "matmul_32": 0.8,
    "grouped_16": 0.15,
    "grouped_32": 0.25,
    "depthwise": 0.1,
    "vector": 0.5,  # of the 32-bit peak, at _VECTOR_OPERATIONS for each element
    # shares of the memory bandwidth
    "conv_bytes": 0.6,
    "matmul_bytes": 0.8,
    "grouped_bytes": 0.6,
    "depthwise_bytes": 0.4,
    "norm_bytes": 0.5,
    "elementwise_bytes": 0.85,
    "copy_bytes": 0.75,
    "optimizer_bytes": 0.6,
    # time of 16-bit convolutions and norms with channels outside (NCHW) relative to inside; of grouped ones the
    # other way round (RegNets were published to train three times slower so)
    "outside_conv": 1.5,
    "outside_norm": 1.2,
    "outside_depthwise": 2.0,
    "grouped_inside": 0.8,
    "odd_grouped_inside": 3.0,
    "half_width": 24.0,  # channels at which a matrix product reaches half its efficiency
    "kernel_microseconds": 3.0,
    "launch_microseconds": 7.0,
    "old_launch_microseconds": 45.0,
    "softness": 2.5,  # of the ridge; large is a hard maximum
    # how the reached share falls for cards with much arithmetic for their bandwidth, and for their power
    "ridge_power": 0.15,
    "watt_power": 0.35,
}
"""What each coefficient starts from, by what such kernels are known to reach; a fit is pulled towards it."""
NAMES = tuple(PRIORS)
_AT = {name: place for place, name in enumerate(NAMES)}
_RIDGE = {"16": 150.0, "tf32": 80.0, "32": 30.0}
"""Operations for each byte moved of the card that the exponents are relative to."""
_WATTS = {"16": 2.0, "tf32": 4.0, "32": 12.0}
"""Watts for each TFLOPS of that card."""
MOST_SHARE = 0.95
_VECTOR_OPERATIONS = 10.0
"""For each element that a kernel without matrix product reads or writes: index, conversion to 32 bits, the operation. A
card with much bandwidth for its vector units (A100, B200) is bound by them where elements have 16 bits."""
_VECTOR = ("norm", "elementwise", "copy")
_TRAFFIC_LIKE = {"attention": "matmul", "odd_grouped": "grouped"}


@dataclass(frozen=True)
class Columns:
    """Kernels of one or more jobs, each beside the figures of its card: one row a shape."""

    count: Floats
    computing_seconds: Floats
    """At the card's peak."""
    moving_seconds: Floats
    width: Floats
    """Of the matrix product; infinite where there is none."""
    rate: Whole
    """Which coefficient is the share of the peak."""
    traffic: Whole
    """Which one is the share of the bandwidth."""
    ridge: Floats
    watts: Floats
    layout: Whole
    """The coefficient that multiplies the time in this layout, or -1."""
    starts: Whole
    """Where each job's kernels begin."""
    launch: Whole
    """For each job, which coefficient is the host's time for one kernel."""


def columns_of(
    work: TracedWork, batch: float, card: Card, precision: str, channels_last: bool | None, old_host: bool = False
) -> Columns:
    """`precision`: fp32 (all 24 bits), tf32, amp or fp16. `channels_last` None: text, or not known. `old_host`:
    launched by a host and a torch of 2019, as some of the measurements were."""
    rows = [_row(each, batch, card, precision, channels_last) for each in work.kernels]
    values = list(zip(*rows, strict=True))

    def floats(place: int) -> Floats:
        return np.array(values[place], dtype=np.float64)

    def whole(place: int) -> Whole:
        return np.array(values[place], dtype=np.int64)

    launch = np.array([_AT["old_launch_microseconds" if old_host else "launch_microseconds"]])
    return Columns(
        count=floats(0),
        computing_seconds=floats(1),
        moving_seconds=floats(2),
        width=floats(3),
        rate=whole(4),
        traffic=whole(5),
        ridge=floats(6),
        watts=floats(7),
        layout=whole(8),
        starts=np.zeros(1, dtype=np.int64),
        launch=launch,
    )


def joined(jobs: Sequence[Columns]) -> Columns:
    """Many jobs, computed at once."""
    lengths = [len(each.count) for each in jobs]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    columns: dict[str, Any] = {
        each.name: np.concatenate([getattr(job, each.name) for job in jobs])
        for each in fields(Columns)
        if each.name != "starts"
    }
    return Columns(**columns, starts=starts)


def step_seconds(jobs: Columns, coefficients: Floats) -> Floats:
    """Of one step of each job. `coefficients` in the order of NAMES."""
    seconds = kernel_seconds(jobs, coefficients)
    device = np.add.reduceat(jobs.count * seconds, jobs.starts)
    host = np.add.reduceat(jobs.count, jobs.starts) * coefficients[jobs.launch] * 1e-6
    result: Floats = (device**4 + host**4) ** 0.25
    return result


def kernel_seconds(jobs: Columns, coefficients: Floats) -> Floats:
    """Of one kernel of each shape."""

    def at(name: str) -> float:
        return float(coefficients[_AT[name]])

    factors = np.append(coefficients, 1.0)  # -1 picks this one
    share = coefficients[jobs.rate] * jobs.ridge ** -at("ridge_power") * jobs.watts ** at("watt_power")
    share = np.minimum(share, MOST_SHARE)
    fill = 1 / (1 + at("half_width") / jobs.width)
    computing = jobs.computing_seconds / (share * fill)
    moving = jobs.moving_seconds / coefficients[jobs.traffic]
    soft = at("softness")
    busy = (computing**soft + moving**soft) ** (1 / soft) * factors[jobs.layout]
    result: Floats = busy + at("kernel_microseconds") * 1e-6
    return result


def _row(each: Kernels, batch: float, card: Card, precision: str, channels_last: bool | None) -> tuple[float, ...]:
    arithmetic = _arithmetic(each, card, precision)
    peak = {"16": card.fp16_tensor_tflops, "tf32": card.tf32_tflops}.get(arithmetic) or card.fp32_tflops
    vector = each.kind in _VECTOR
    tensor = each.sixteen_bit and card.fp16_tensor_tflops is not None
    layout = -1
    if channels_last is False and tensor and each.kind in ("conv", "norm", "depthwise"):
        layout = _AT[f"outside_{each.kind}"]
    if channels_last and each.kind in ("grouped", "odd_grouped"):
        layout = _AT[f"{each.kind}_inside"]
    return (
        each.count,
        _operations(each, batch) / (peak * 1e12),
        each.bytes.at(batch) / (card.memory_gb_s * 1e9),
        float(each.width) if each.kind in ("conv", "matmul", "grouped", "odd_grouped") and each.width else np.inf,
        _AT[_rate_name(each.kind, arithmetic)],
        _AT[f"{_TRAFFIC_LIKE.get(each.kind, each.kind)}_bytes"],
        1.0 if vector else peak * 1e3 / card.memory_gb_s / _RIDGE[arithmetic],
        1.0 if vector else card.watts / peak / _WATTS[arithmetic],
        layout,
    )


def _arithmetic(each: Kernels, card: Card, precision: str) -> str:
    """Which of the card's units do it: 16-bit tensor cores, TF32 ones, or plain 32-bit."""
    if each.kind == "depthwise" or each.kind in _VECTOR:  # no matrix product: the vector units do it
        return "32"
    if each.sixteen_bit and card.fp16_tensor_tflops is not None:
        return "16"
    return "tf32" if precision == "tf32" and card.tf32_tflops else "32"


def _rate_name(kind: str, arithmetic: str) -> str:
    if kind in ("grouped", "odd_grouped"):
        return "grouped_16" if arithmetic == "16" else "grouped_32"
    if kind in ("conv", "matmul"):
        return f"{kind}_{arithmetic}"
    if kind in _VECTOR:
        return "vector"
    return "depthwise" if kind == "depthwise" else f"matmul_{arithmetic}"


def _operations(each: Kernels, batch: float) -> float:
    if each.kind not in _VECTOR:
        return each.flops.at(batch)
    return _VECTOR_OPERATIONS * each.bytes.at(batch) / (2 if each.sixteen_bit else 4)
