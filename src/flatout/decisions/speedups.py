"""Which of the switches of `speedups: auto` are on in a recipe, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flatout.config.speedups import speedups_for
from flatout.decisions.choice import AUTO, Choice, is_open

if TYPE_CHECKING:
    from flatout.config.schema import Config

METHODS = (
    "train.optimizer",
    "train.schedule",
    "train.ema",
    "train.swa",
    "train.lookahead",
    "train.selective",
    "model.freeze_from",
    "model.stem",
    "model.zero_gamma",
    "model.blur_pool",
    "model.squeeze_excite",
    "model.stochastic_depth",
)
VIEW_METHODS = ("sizes", "alternate_flip", "mixup", "cutmix")
NO_METHODS: Choice[dict[str, Any]] = Choice({}, "not recorded")
NO_SPEEDUPS: Choice[dict[str, Any]] = Choice({}, "speedups is off", "off")


def choose_speedups(config: Config) -> Choice[dict[str, Any]]:
    """By key, those whose value the recipe has: a key of the user's own with another value is one that is off."""
    if not is_open(config.speedups):
        return NO_SPEEDUPS
    values = config.model_dump(by_alias=True)
    known = speedups_for(values)
    on = [each for each in known if _lookup(values, each.key) == each.value]
    off = [each.key for each in known if each not in on]
    left_out = f"; set otherwise by the recipe: {', '.join(off)}" if off else ""
    reason = "; ".join(f"{each.key}: {each.why}" for each in on) or "nothing is left to switch on"
    return Choice({each.key: each.value for each in on}, f"{reason}{left_out}", AUTO)


def choose_methods(config: Config) -> Choice[dict[str, Any]]:
    """The methods of docs/faster.md that are on in a run, whoever switched them on."""
    values, plain = config.model_dump(by_alias=True), type(config)().model_dump(by_alias=True)
    on = {key: value for key in METHODS if (value := _lookup(values, key)) != _lookup(plain, key)}
    view = config.views.get(config.data.view)
    changes = {} if view is None else {name: getattr(view, name) for name in VIEW_METHODS}
    on |= {f"views.{config.data.view}.{name}": value for name, value in changes.items() if value}
    return Choice(on, "as the recipe says, or speedups" if on else "none is on")


def speedup_notes(config: Config) -> list[str]:
    """For the log of a run."""
    chosen = choose_speedups(config)
    return [f"speedups: auto, on are {chosen.reason}"] if chosen.was_open else []


def _lookup(values: Any, key: str) -> Any:
    section, _, rest = key.partition(".")
    name, _, last = rest.rpartition(".")  # a view's name may have dots of its own
    inner = values.get(section, {})
    inner = inner.get(name, {}) if name else inner
    return inner.get(last or rest) if isinstance(inner, Mapping) else None
