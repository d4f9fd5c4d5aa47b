"""Recipes and suites that come with flatout: found by name wherever it is installed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.errors import ConfigError
from flatout.untrusted import blamed_as, read_yaml

FOLDER = Path(__file__).parents[1] / "recipes"
_SUITES = "suites"


@dataclass(frozen=True)
class Shipped:
    """One file, and what its first comment says."""

    name: str
    kind: str  # recipe | suite
    path: Path
    about: str


def shipped() -> list[Shipped]:
    """Recipes, then suites, by name."""
    return [*_listed(FOLDER, "recipe"), *_listed(FOLDER / _SUITES, "suite")]


def _listed(folder: Path, kind: str) -> Iterator[Shipped]:
    for path in sorted(folder.glob("*.yaml")):
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        yield Shipped(path.stem, kind, path, first.lstrip("# "))


def locate(path: Path, kind: str = "recipe") -> Path:
    """The user's file, where there is one; else the shipped one that is called so: demo, or recipes/demo.yaml."""
    if path.exists():
        return path
    if path.parts[:1] == (FOLDER.name,):
        inside = FOLDER.joinpath(*path.parts[1:])
        return inside if inside.is_file() and ".." not in path.parts else path
    folder = FOLDER if kind == "recipe" else FOLDER / _SUITES
    named = folder / f"{path.name}.yaml"
    return named if len(path.parts) == 1 and not path.suffix and named.is_file() else path


def recipe_beside(file: Path, named: Path) -> Path:
    """What a suite or sweep names as its recipe: a file beside it, else a shipped one that is called so."""
    beside = file.parent / named
    return beside if beside.is_file() or locate(named) == named else locate(named)


def read_keys(path: Path, kind: str, example: str) -> dict[str, Any]:
    """Of a recipe or suite; a file that is not there, or holds none, is a ConfigError."""
    try:
        with blamed_as(ConfigError):
            values = read_yaml(path)
    except FileNotFoundError:
        where = "recipes/suites/" if kind == "suite" else "recipes/"
        hint = f"{near_names(path.name, kind)}; see {where} by: flatout recipes"
        raise ConfigError(f"no {kind} at {path}{hint}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no keys; a {kind} looks like: {example}")
    return values


def near_names(name: str, kind: str = "recipe") -> str:
    """`; did you mean demo?`, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, [each.name for each in shipped() if each.kind == kind], n=1)
    return f"; did you mean {close[0]}?" if close else ""
