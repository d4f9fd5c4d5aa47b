"""docs/map.md, both journeys and CONTRIBUTING.md are true: what they link is there, and what they name is in it."""

import ast
import configparser
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parents[2]
CODE = ROOT / "src/flatout"
PAGES = (
    "docs/map.md",
    "docs/journey-of-a-batch.md",
    "docs/journey-of-a-record.md",
    "docs/extend.md",
    "CONTRIBUTING.md",
)
LINK = re.compile(r"\[(`?)([^\]`]+)`?\]\(([^)#]+)\)")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


def links(page: Path) -> Iterator[tuple[str, Path]]:
    """Name in code font, or an empty text, and the file that it is a link to."""
    for tick, text, target in LINK.findall(page.read_text()):
        if "://" not in target:
            is_name = (
                tick and NAME.fullmatch(text) and not text.endswith((".py", ".c", ".md", ".yaml", ".importlinter"))
            )
            yield (text if is_name else ""), (page.parent / target).resolve()


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods as Class.method, and what is assigned at module level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef():
                found.add(node.name)
            case ast.ClassDef():
                found |= {
                    node.name,
                    *(f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)),
                }
            case ast.Assign():
                found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return frozenset(found)


PAGES_AND_DECISIONS = [
    *PAGES,
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/decisions").glob("*.md"))),
]


@pytest.mark.parametrize("page", PAGES_AND_DECISIONS)
def test_every_file_that_is_linked_is_there_and_has_what_is_named(page: str) -> None:
    found = list(links(ROOT / page))
    assert found or page not in PAGES
    assert [str(path) for _, path in found if not path.exists()] == []
    absent = [(name, path.name) for name, path in found if name and path.suffix == ".py" and name not in names_in(path)]
    assert absent == []


@pytest.mark.parametrize("journey", ["batch", "record"])
def test_a_journey_names_functions_and_classes_of_many_rooms(journey: str) -> None:
    named = [path for name, path in links(ROOT / f"docs/journey-of-a-{journey}.md") if name and path.suffix == ".py"]
    rooms = {path.relative_to(CODE).parts[0] for path in named}
    assert len(named) > 20
    assert len(rooms) >= 7


def rows(page: Path, columns: int) -> list[list[str]]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line[:1] == "|"
    ]
    return [row for row in cells if len(row) == columns and set(row[0]) != {"-"}]


def test_the_map_has_the_arrows_of_importlinter() -> None:
    linter = configparser.RawConfigParser()
    linter.read(ROOT / ".importlinter")
    listed = linter["importlinter:contract:rooms"]["rows"].strip().splitlines()
    arrows = {room.strip(): named.split() for room, _, named in (line.partition(":") for line in listed)}
    table = {room.strip("`"): named for room, _, named in rows(ROOT / "docs/map.md", 3) if room != "room"}
    shown = {room: named.replace("everything", "*").replace("–", "").split() for room, named in table.items()}
    assert shown == arrows
    there = {path.stem for path in CODE.iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert there <= set(arrows)


def commands() -> dict[str, Path]:
    """Every command by its words, and the file that defines it."""
    from flatout.cli import apps, register

    register()
    found: dict[str, Path] = {}

    def walk(group: object, words: tuple[str, ...]) -> None:
        for name, command in getattr(group, "commands").items():  # noqa: B009 (typer's or click's own class)
            if hasattr(command, "commands"):
                walk(command, (*words, name))
            else:
                found[" ".join((*words, name))] = ROOT / f"src/{command.callback.__module__.replace('.', '/')}.py"

    walk(typer.main.get_command(apps.app), ("flatout",))
    return found


def imports(path: Path) -> set[Path]:
    """Files of flatout that a file imports, inside functions too."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    found = {ROOT / "src" / f"{module.replace('.', '/')}.py" for module in modules}
    packages = {ROOT / "src" / module.replace(".", "/") / "__init__.py" for module in modules}
    inside = {each for package in packages if package.exists() for each in imports(package)}
    return {each for each in found | inside if each.exists()}


def test_every_command_leads_to_the_work_in_three_files() -> None:
    table = {}
    for name, *cells in rows(ROOT / "docs/map.md", 4):
        if name != "command":
            table[name.strip("`")] = [(ROOT / "docs" / LINK.findall(cell)[0][2]).resolve() for cell in cells]
    defined = commands()
    assert {name: files[0] for name, files in table.items()} == defined
    for name, (command, use_case, work) in table.items():
        assert use_case in imports(command), name
        assert work in imports(use_case), name
