"""What `speedups: auto` (`flatout train --fast`) switches on: values for keys that are not set, and reasons.

Every switch is an ordinary key: a recipe or --set that names it has the last word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flatout.config.sections.model import RESNETS
from flatout.config.tasks import DEFAULT_TASK

SHIPPED_SIDES = {"train-224": 224, "train-64": 64}  # views that ship, with random crops and fair flips
_DEFAULT_VIEW, _DEFAULT_EPOCHS, _DEFAULT_STEM = "train-64", 10, "small"
_STAGES = ((0.0, 1 / 2), (0.35, 3 / 4), (0.65, 1.0))  # from this share of the epochs on, this share of the side
_LEAST_EPOCHS, _LEAST_SIDE, _SIDE_STEP = 4, 16, 8
_STRIDE, _STRIDE_OF_SMALL_STEM = 32, 8  # from pixels to the places of the last layers
_LEAST_PLACES = 2  # there, along a side: with fewer, filters of 3x3 see little but the padding around


@dataclass(frozen=True)
class Speedup:
    key: str
    value: Any
    why: str


def speedups_for(values: Mapping[str, Any]) -> list[Speedup]:
    """Of a recipe's values, of which any may be missing: they need not be valid yet. All of them, set or not."""
    if values.get("task", DEFAULT_TASK) != DEFAULT_TASK:
        return []
    if not isinstance(values.get("data", {}), Mapping) or not isinstance(values.get("train", {}), Mapping):
        return []
    view = values.get("data", {}).get("view") or _DEFAULT_VIEW
    epochs = _whole(values.get("train", {}).get("epochs", _DEFAULT_EPOCHS))
    found = [Speedup("train.schedule", "one-cycle", "a high rate for most of a short run, and none at its end")]
    own = values.get("views") or {}
    recipe = (own.get(view) or {}) if isinstance(own, Mapping) else {}
    if not isinstance(recipe, Mapping) or "." in str(view) or view == values.get("data", {}).get("eval_view"):
        return found
    base = recipe.get("base") or (view if view not in own or view in SHIPPED_SIDES else None)
    side = _whole(recipe.get("size") or SHIPPED_SIDES.get(str(base)))
    if base not in SHIPPED_SIDES or side is None or recipe.get("crop") not in (None, "pad", "random-resized"):
        return found
    sizes = growing_sides(side, epochs, _stride(values)) if epochs is not None else {}
    if recipe.get("base") is None:
        found.append(Speedup(f"views.{view}.base", base, "it is the shipped view, with the changes below"))
    if recipe.get("flip") in (None, 0.5):
        found.append(Speedup(f"views.{view}.alternate_flip", True, "two epochs show each picture once each way"))
    if sizes:
        shown = ", ".join(f"{each} px from epoch {first}" for first, each in sizes.items())
        found.append(Speedup(f"views.{view}.sizes", sizes, f"early epochs learn what small pictures show: {shown}"))
    return found


def _whole(value: Any) -> int | None:
    """As the recipe's checks will read it: 10.0 and "10" are 10; None of what is no whole number."""
    try:
        return int(float(value)) if float(value).is_integer() else None
    except (TypeError, ValueError):
        return None


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def growing_sides(side: int, epochs: int, stride: int) -> dict[int, int]:
    """First epoch -> side in pixels; empty where a run is too short or pictures are too small for stages. `stride` is
    how many pixels become one place of the model's last layers."""
    least = max(_LEAST_SIDE, _LEAST_PLACES * stride)
    if epochs < _LEAST_EPOCHS or side * _STAGES[1][1] < least:
        return {}
    sides: dict[int, int] = {}
    for share, part in _STAGES:
        each = side if part == 1 else math.ceil(max(least, side * part) / _SIDE_STEP) * _SIDE_STEP
        if each not in sides.values():
            sides[math.ceil(share * epochs)] = each
    return sides


def _stride(values: Mapping[str, Any]) -> int:
    model = _section(values, "model")
    own, stem = model.get("name", RESNETS[0]) in RESNETS, model.get("stem", _DEFAULT_STEM)
    return _STRIDE_OF_SMALL_STEM if own and stem == _DEFAULT_STEM else _STRIDE
