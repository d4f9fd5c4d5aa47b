"""A card's speed for a job, with what it rests on and how far off it may be."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from flatout.decisions.choice import unless_open
from flatout.diagnosis.model.device import DeviceTime
from flatout.diagnosis.model.interval import Interval
from flatout.planning.cards import Card
from flatout.planning.speed import NAMES, Floats, columns_of, step_seconds
from flatout.planning.work import TracedWork

_SHIPPED = Path(__file__).with_name("coefficients.json")
LOOP_SECONDS = 0.0005
"""Of a core, that the loop takes for a step besides launching; a consumer's part of loading is in its costs."""
_UNKNOWN_MODEL = "unknown model"
"""Added to the spread for a model that nobody published a speed of."""


class Basis(StrEnum):
    """What a figure rests on, from the firmest to the widest."""

    OWN = "calibrated by your run"
    MEASURED = "measured on this card"
    NEIGHBOURS = "fitted on neighbours"
    ROOFLINE = "roofline only"


@dataclass(frozen=True)
class Coefficients:
    """As shipped: efficiencies, offsets of models, generations and cards, and how far off each basis was in trials."""

    dated: str
    vector: Floats
    software: float
    offsets: Mapping[str, float]
    spread: Mapping[str, float]


@dataclass(frozen=True)
class Correction:
    """What a run of the user's own took of what was estimated for its card: holds for this model on any card."""

    factor: float
    card: str
    source: str


@dataclass(frozen=True)
class Speed:
    """One step on one card."""

    seconds: Interval
    basis: Basis
    device: DeviceTime
    """The same as a line over the batch, for the performance model that predictions share."""


@functools.cache
def load_coefficients(path: Path = _SHIPPED) -> Coefficients:
    values = json.loads(path.read_text(encoding="utf-8"))
    vector = np.array([values["coefficients"][name] for name in NAMES])
    return Coefficients(values["dated"], vector, values["software"], values["offsets"], values["spread"])


def arithmetic_for(card: Card, precision: str, tf32: bool) -> str:
    """What `train.precision` means on a card: amp (16 bits), tf32 or fp32. Without tensor cores 16 bits gain nothing,
    and `auto` stays with fp32 there, as training does."""
    precision = unless_open(precision) or ("16" if card.fp16_tensor_tflops is not None else "fp32")
    if precision in ("16", "bf16", "fp16"):
        return "amp"
    return "tf32" if tf32 and card.tf32_tflops is not None else "fp32"


def basis_of(card: Card, arithmetic: str, told: Coefficients) -> Basis:
    if f"card:{card.name}:{arithmetic}" in told.offsets:
        return Basis.MEASURED
    known = f"architecture:{card.architecture}:{arithmetic}" in told.offsets
    return Basis.NEIGHBOURS if known else Basis.ROOFLINE


def speed_of(
    work: TracedWork,
    batch: float,
    card: Card,
    arithmetic: str,
    channels_last: bool | None,
    model: str,
    correction: Correction | None = None,
) -> Speed:
    """`model` is its bare name (`resnet50`): published speeds of the very model narrow the interval."""
    told = load_coefficients()
    keys = [
        f"{kind}:{name}:{arithmetic}"
        for kind, name in (("model", model), ("architecture", card.architecture), ("card", card.name))
    ]
    basis = basis_of(card, arithmetic, told)
    wide = told.spread[basis] + (0.0 if keys[0] in told.offsets else told.spread[_UNKNOWN_MODEL])
    factor = math.exp(told.software + sum(told.offsets.get(key, 0.0) for key in keys))
    if correction is not None:
        factor, basis = factor * correction.factor, Basis.OWN
        wide = 0.06 if correction.card == card.name else wide / 2  # what is left is the card, not the model
    whole, half = (
        factor * float(step_seconds(columns_of(work, size, card, arithmetic, channels_last), told.vector)[0])
        for size in (batch, batch / 2)
    )
    slope = max(0.0, (whole - half) / (batch / 2))
    device = DeviceTime(max(0.0, whole - slope * batch), slope, work.forward_share)
    return Speed(Interval(whole, whole * math.exp(-wide), whole * math.exp(wide)), basis, device)


def host_seconds(work: TracedWork) -> float:
    """Of a core, for one step: launching its kernels, and the loop around them."""
    each = float(load_coefficients().vector[NAMES.index("launch_microseconds")]) * 1e-6
    return LOOP_SECONDS + sum(kernels.count for kernels in work.kernels) * each
