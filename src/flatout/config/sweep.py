"""A sweep: one recipe, values to try for some of its keys, and how the field is cut."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from flatout.config.sections.fields import Section
from flatout.config.shipped import locate, recipe_beside
from flatout.errors import ConfigError
from flatout.untrusted import blamed_as, parse_yaml, read_yaml, shortened

_OWN = ("name", "train.epochs", "stop.after_epochs")  # what a sweep itself says, or needs to be the same for all
_EXAMPLE = "--over train.lr=0.01,0.03,0.1 --over data.batch_size=64,128"


class SweepConfig(Section):
    recipe: Path
    """What every configuration starts from; relative to the sweep's file."""
    name: str = ""
    """Folder of its runs under runs/; default <recipe>-sweep."""
    set: dict[str, Any] = Field({})
    """Dotted keys that all configurations change."""
    over: dict[str, list[Any]] = Field({})
    """Dotted keys of the recipe, each with the values to try."""
    configs: int = Field(16, ge=2, le=1000)
    """Most configurations: all combinations where there are no more, else so many that the seed draws."""
    eta: int = Field(2, ge=2, le=100)
    """One of so many goes on to the next rung."""
    rungs: list[int] | None = None
    """Epochs at which the field is cut; default train.epochs divided by eta again and again."""
    metric: str | None = None
    """What decides: a column of epochs.csv; default the recipe's checkpoint.metric."""
    budget: str | None = None
    """Most time or money: 30min, 2h, 5usd."""
    seed: int = Field(0, ge=0)
    """Draws configurations; the seed of training is train.seed."""
    jobs: int | None = Field(None, ge=1, le=256)
    """Configurations that train at the same time; default one for each card, or as many as cores and memory hold."""
    ray: str | None = None
    """Train them on the machines of this Ray cluster (an address, or local); all see the same folders."""


def load_sweep(path: Path, options: Mapping[str, Any], over: Sequence[str]) -> SweepConfig:
    """From a recipe or a sweep's own file (it has `over`); `options` (the command line's) replace what it says."""
    path = locate(path)
    try:
        with blamed_as(ConfigError):
            values = read_yaml(path)
    except FileNotFoundError:
        raise ConfigError(f"no recipe or sweep at {path}; see recipes/ by: flatout recipes") from None
    if isinstance(values, dict) and "over" in values:
        values = {**values, "recipe": recipe_beside(path, Path(str(values.get("recipe", ""))))}
    else:
        values = {"recipe": path}
    given = {key: value for key, value in options.items() if value is not None}
    for key, more in (("set", given.get("set", {})), ("over", dict(map(_parse_over, over)))):
        stated = values.get(key) or {}
        given[key] = {**stated, **more} if isinstance(stated, dict) else stated  # what it is instead is refused below
    config = _checked({**values, **given}, path)
    if not config.recipe.is_file():
        raise ConfigError(f"{path}: no recipe at {config.recipe}; `recipe` is relative to the sweep's file")
    return config


def _checked(values: Mapping[str, Any], path: Path) -> SweepConfig:
    try:
        config = SweepConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {key} is {shortened(first['input'])}: {first['msg'].lower()}") from None
    if not config.over:
        raise ConfigError(f"nothing to try: say which values, for example {_EXAMPLE}")
    for key, tried in config.over.items():
        if key in _OWN:
            raise ConfigError(f"a sweep is not over {key}: its rungs are epochs of runs of one length")
        if len(tried) < 2:
            raise ConfigError(f"--over {key} has {len(tried)} value(s), nothing to choose from; use --set {key}=VALUE")
        if len({json.dumps(value, default=str) for value in tried}) < len(tried):
            raise ConfigError(f"--over {key} has a value twice: {shortened(tried)}")
        if key in config.set:
            raise ConfigError(f"--set {key} would make the configurations equal: the sweep is over it")
    rungs = config.rungs
    if rungs is not None and (not rungs or rungs[0] < 1 or rungs != sorted(set(rungs))):
        raise ConfigError(f"--rungs is {rungs}; give ascending epochs, for example 1,2,4,8")
    return config


def _parse_over(text: str) -> tuple[str, list[Any]]:
    """`key=a,b,c`; each value is YAML, and what is in brackets is one value."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--over {text!r} has no values; write for example {_EXAMPLE}")
    with blamed_as(ConfigError):
        parsed = parse_yaml(f"[{values}]", f"--over {shortened(text)}")
    return key.strip(), list(parsed)


def configuration_name(changes: Mapping[str, Any]) -> str:
    """`lr=0.1 batch_size=64`; whole keys where the short ones are not different."""
    short = [key.rsplit(".", 1)[-1] for key in changes]
    labels = short if len(set(short)) == len(short) else list(changes)
    words = [value if isinstance(value, str) else json.dumps(value) for value in changes.values()]
    return " ".join(f"{label}={word}" for label, word in zip(labels, words, strict=True))


def configuration_folder(number: int, changes: Mapping[str, Any]) -> str:
    """Numbered: two names may look the same as a folder."""
    text = re.sub(r"[^\w.=+-]+", "-", configuration_name(changes)).strip("-.")
    return f"{number:02d}-{text[:100]}"
