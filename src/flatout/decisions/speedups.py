"""Which of the switches of `speedups: auto` are on in a recipe, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flatout.config.speedups import speedups_for
from flatout.decisions.choice import AUTO, Choice, is_open

if TYPE_CHECKING:
    from flatout.config.schema import Config

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
