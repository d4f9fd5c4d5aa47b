"""A suite: one recipe, what differs from experiment to experiment, and the order in which they run."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from flatout.config.sections.fields import Section
from flatout.config.shipped import locate, read_keys, recipe_beside
from flatout.config.sweep import configuration_name
from flatout.errors import ConfigError

_EXAMPLE = "recipe: ../demo.yaml, variants: [{name: baseline}, {name: no-workers, set: {data.workers: 0}}]"


class VariantConfig(Section):
    name: str
    """One word or two: the experiment's row, and its folder."""
    set: dict[str, Any] = Field({})
    """Dotted keys of the recipe and their values."""
    comment: str = ""
    """Last column of the table."""
    together: int = Field(1, ge=1, le=64)
    """Runs of it that train at the same time, for example to share batches; each has a row of its own."""


class SuiteConfig(Section):
    name: str
    """Folder of the suite's runs under runs/."""
    recipe: Path
    """What every experiment starts from; relative to the suite's file."""
    set: dict[str, Any] = Field({})
    """Dotted keys that all experiments change."""
    variants: list[VariantConfig] = Field([])
    """Experiments by name."""
    matrix: dict[str, list[Any]] = Field({})
    """Dotted keys with lists of values: every variant is run with every combination."""
    repeats: int = Field(1, ge=1)
    """How often each experiment is run; one round of all, then the next."""
    columns: list[str] = Field([])
    """More columns: dotted keys of summary.json or of the recipe, for example accuracy.top1 or train.accumulate."""


@dataclass(frozen=True)
class Experiment:
    """One run of a suite."""

    name: str
    folder: str
    comment: str
    overrides: Mapping[str, Any]
    group: str = ""
    """Neighbours of one group train at the same time."""


@dataclass(frozen=True)
class Suite:
    """Experiments in the order in which they run."""

    name: str
    recipe: Path
    columns: tuple[str, ...]
    experiments: tuple[Experiment, ...]


def load_suite(path: Path, overrides: Mapping[str, Any]) -> Suite:
    """Read a suite; `overrides` (the command line's) are for every experiment and may not undo what differs."""
    path = locate(path, "suite")
    config = _validated(read_keys(path, "suite", _EXAMPLE), path)
    recipe = recipe_beside(path, Path(config.recipe))
    if not recipe.is_file():
        raise ConfigError(f"{path}: no recipe at {recipe}; `recipe` is relative to the suite's file")
    varied = {key for variant in config.variants for key in variant.set} | set(config.matrix)
    for key in overrides:
        if key in varied:
            raise ConfigError(f"--set {key} would make the experiments of {path} equal: they differ in it")
    experiments = tuple(
        Experiment(
            name,
            _folder(name, repeat, config.repeats),
            comment,
            {**config.set, **changes, **overrides},
            f"{group} {repeat}",
        )
        for repeat in range(config.repeats)
        for name, group, comment, changes in _combinations(config)
    )
    folders = [each.folder for each in experiments]
    for folder in folders:
        if folders.count(folder) > 1:
            raise ConfigError(f"{path}: two experiments are called {folder!r}; give every variant its own name")
    return Suite(config.name, recipe, tuple(config.columns), experiments)


def _combinations(config: SuiteConfig) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Name, group, comment and changes of each experiment, once."""
    variants = config.variants or [VariantConfig(name="")]
    for variant, values in itertools.product(variants, itertools.product(*config.matrix.values())):
        picked = dict(zip(config.matrix, values, strict=True))
        name = " ".join(part for part in (variant.name, configuration_name(picked)) if part) or config.name
        changes = {**variant.set, **picked}
        for number in range(variant.together):
            yield f"{name} job {number + 1}" if variant.together > 1 else name, name, variant.comment, changes


def _folder(name: str, repeat: int, repeats: int) -> str:
    folder = re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "experiment"
    return folder if repeats == 1 else f"{folder}-{repeat + 1}"


def _validated(values: dict[str, Any], path: Path) -> SuiteConfig:
    try:
        config = SuiteConfig.model_validate({"name": path.stem, **values})
    except ValidationError as error:
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")  # a typo explains the others
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = (VariantConfig if "variants" in key else SuiteConfig).model_fields
            raise ConfigError(f"{path}: unknown key {key}; known keys here: {', '.join(known)}") from None
        raise ConfigError(f"{path}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}; example: {_EXAMPLE}") from None
    if not config.variants and not config.matrix:
        raise ConfigError(f"{path} has neither variants nor a matrix; a suite looks like: {_EXAMPLE}")
    return config
