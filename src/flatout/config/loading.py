"""From files, overrides and defaults to one checked Config that knows where each value came from."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from flatout.config.checks import find_unused, find_wrong_combinations
from flatout.config.dotted import leaves, nested
from flatout.config.schema import Config, ViewConfig
from flatout.config.shipped import locate, read_keys
from flatout.config.speedups import speedups_for
from flatout.config.tasks import spec_of
from flatout.errors import ConfigError
from flatout.untrusted import blamed_as, parse_yaml, shortened


@dataclass(frozen=True)
class Loaded:
    """A configuration and, for every dotted key, where its value came from."""

    config: Config
    origins: Mapping[str, str]


def load_config(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Loaded:
    """Read a recipe (a path or a mapping), apply overrides, fill in defaults, check."""
    given, origin = (source, "given") if isinstance(source, Mapping) else (_read(Path(source)), str(source))
    origins: dict[str, str] = {key: origin for key, _ in leaves(given)}
    values = json.loads(json.dumps(given, default=str))  # a deep copy of plain values
    for key, value in (overrides or {}).items():
        _assign(values, key, value)
        origins = {old: origin for old, origin in origins.items() if not f"{old}.".startswith(f"{key}.")}
        origins.update((leaf, "--set") for leaf, _ in leaves({key: value}))
    filled = _fill_in_for_task(values) | _fill_in_speedups(values)
    config = _validated(values)
    effective = dict(flat(config))  # so that 1e-1, which YAML reads as text, equals a default of 0.1
    set_keys = {
        key: effective.get(key, nested(values, key))
        for key, origin in origins.items()
        # a recipe may say how it emulates an accelerator and still be trained on a real one
        if origin == "--set" or not key.startswith("emulated.")
    }
    for problem in (*find_unused(config, set_keys), *find_wrong_combinations(config)):
        raise ConfigError(problem)
    return Loaded(config, {key: {**filled, **origins}.get(key, "default") for key, _ in flat(config)})


def _fill_in_for_task(values: dict[str, Any]) -> dict[str, str]:
    """Defaults that depend on what is learned, for keys that are not set; returns where they came from."""
    task = values.get("task")
    filled = {}
    for key, value in spec_of(task).defaults.items():
        if nested(values, key) is None and isinstance(values.get(key.split(".")[0], {}), dict):
            _assign(values, key, value)
            filled[key] = f"task {task}"
    return filled


def _fill_in_speedups(values: dict[str, Any]) -> dict[str, str]:
    """What `speedups: auto` stands for, for keys that are not set; returns where they came from."""
    filled: dict[str, str] = {}
    if values.get("speedups") != "auto":
        return filled
    for each in speedups_for(values):
        if nested(values, each.key) is None:
            _assign(values, each.key, each.value)
            filled |= {key: "speedups: auto" for key, _ in leaves({each.key: each.value})}
    return filled


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """`a.b=c` from the command line; c is read as YAML, so false is a boolean and 3 a number."""
    parsed: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r} has no value; write --set key=value, for example --set train.epochs=3")
        with blamed_as(ConfigError):
            parsed[key.strip()] = parse_yaml(value, f"--set {shortened(text)}")
    return parsed


def dump_config(config: Config) -> str:
    """The effective configuration as YAML that loads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False)


def config_digest(config: Config) -> str:
    """Digest of what is trained, not of what the run is called."""
    values = config.model_dump(mode="json", by_alias=True, exclude={"name"})
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def flat(config: Config) -> Iterator[tuple[str, Any]]:
    """Every dotted key with its value."""
    return leaves(config.model_dump(mode="json", by_alias=True))


def differences(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, as (key, old, new)."""
    before, after = dict(flat(old)), dict(flat(new))
    keys = [*after, *(key for key in before if key not in after)]
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def _read(path: Path) -> dict[str, Any]:
    return read_keys(locate(path), "recipe", "name: demo, data: {path: ...}")


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        child = values.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{key} cannot be set: {parent} is the value {child!r}, not a section")
        values = child
    values[last] = value


def _validated(values: dict[str, Any]) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_describe(error)) from None


def _describe(error: ValidationError) -> str:
    """The first problem in one line; an unknown key comes with the nearest known one."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return f"unknown key {'.'.join(location)}{_suggestion(location)}"
    shown = _key_of(location)
    # of several kinds that a value may be, what is said of the one that it came closest to
    alternatives = [each for each in error.errors() if _key_of([str(part) for part in each["loc"]]) == shown]
    first = max(alternatives, key=lambda each: len(each["loc"]))
    return f"{shown} is {shortened(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"


def _key_of(location: list[str]) -> str:
    """As the recipe has it, without the kinds of value that pydantic tried."""
    named_by_user = location[1:2] if location[0] == "views" else []
    known = [part for part in location if part in _all_names() or part in named_by_user]
    return ".".join(known or location)


# keys that people look for, and what there is instead
_NOT_YET = {
    "pretrained": "model.weights says where weights come from: a file, run:DIR, timm or torchvision",
}


def _suggestion(location: list[str]) -> str:
    if location[-1] in _NOT_YET:
        return f": {_NOT_YET[location[-1]]}"
    section: type[BaseModel] | None = ViewConfig if location[0] == "views" else Config
    for part in location[:-1] if section is Config else ():
        section = _child(section, part)
    names = list(_names(section)) if section else []
    parent = "".join(f"{part}." for part in location[:-1])
    close = difflib.get_close_matches(location[-1], names, n=1)
    if close:
        return f"; did you mean {parent}{close[0]}?"
    elsewhere = [key for key in _all_keys() if key.rsplit(".", 1)[-1] == location[-1]]
    elsewhere += difflib.get_close_matches(".".join(location), _all_keys(), n=1)
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; known keys here: {', '.join(names)}"


def _child(section: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    fields = section.model_fields if section else {}
    field = fields.get(name) or fields.get(f"{name}_")
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _names(section: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items()]


def _all_keys() -> list[str]:
    return [key for key, _ in flat(Config())]


def _all_names() -> set[str]:
    return {part for key in _all_keys() for part in key.split(".")} | set(_names(ViewConfig))
