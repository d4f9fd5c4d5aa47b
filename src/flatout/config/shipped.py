"""Recipes and suites that come with flatout: found by name wherever it is installed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
    if _is_there(path):
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
    return beside if _is_there(beside) or locate(named) == named else locate(named)


def _is_there(path: Path) -> bool:
    """Not where the system refuses the very name: too long, for one."""
    with suppress(OSError):
        return path.exists()
    return False


def near_names(name: str, kind: str = "recipe") -> str:
    """`; did you mean demo?`, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, [each.name for each in shipped() if each.kind == kind], n=1)
    return f"; did you mean {close[0]}?" if close else ""
