"""The recipes that come with flatout: list them, show one, copy one to change it."""

import re
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flatout.config.shipped import Shipped, near_names, shipped
from flatout.errors import ConfigError
from flatout.runs.directory import write_text

_RECIPE_LINE = re.compile(r"^recipe: *(\S+)", re.MULTILINE)


def list_recipes() -> list[dict[str, Any]]:
    """Name, kind and one line of each."""
    return [{"name": each.name, "kind": each.kind, "about": each.about} for each in shipped()]


def recipes_table(rows: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in rows:
        table.add_row(Text(row["name"], style="bold"), Text(row["kind"], style="dim"), Text(row["about"]))
    return table


def recipe_text(name: str) -> str:
    """The whole file, comments and all."""
    return _named(name).path.read_text(encoding="utf-8")


def copy_recipe(name: str, to: Path | None = None) -> list[Path]:
    """Write NAME.yaml, or `to`; of a suite, also the recipe it varies, beside it. Nothing is overwritten."""
    found = _named(name)
    target = (to / f"{name}.yaml" if to.is_dir() else to) if to is not None else Path(f"{name}.yaml")
    texts = {target: found.path.read_text(encoding="utf-8")}
    if found.kind == "suite" and (line := _RECIPE_LINE.search(texts[target])):
        varied = (found.path.parent / line[1]).resolve()
        texts[target] = texts[target].replace(line[0], f"recipe: {varied.name}")
        beside = target.with_name(varied.name)
        if not beside.exists():
            texts[beside] = varied.read_text(encoding="utf-8")
    if target.exists():
        raise ConfigError(f"{target} is there already; choose another name: flatout recipes copy {name} OTHER.yaml")
    try:
        for path, text in texts.items():
            write_text(path, text)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}; choose another place") from None
    return list(texts)


def _named(name: str) -> Shipped:
    found = next((each for each in shipped() if each.name == name), None)
    if found is None:
        near = near_names(name) or near_names(name, "suite")
        raise ConfigError(f"no recipe is called {name!r}{near}; flatout recipes lists them")
    return found
