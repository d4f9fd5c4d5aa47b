"""Every command and setting that a recipe's comments tell is tried as it stands there.

A command has a comment line of its own, three spaces in. `--set ...` alone is an option to add to the recipe's command.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flatout.cli import register
from flatout.cli.main import app
from flatout.config.loading import load_config, parse_assignments
from flatout.config.suite import load_suite

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "recipes").rglob("*.yaml"))
TOLD = re.compile(
    r"`flatout|\bflatout [a-z-]+ \S*[/.]|--\w|\b[a-z_]+(\.[a-z_]+)+=|\b(set|add) [a-z_.]+=|\w \w*/\S*\.yaml"
)


def comments(path: Path) -> list[str]:
    """Continued lines are joined to one."""
    text = re.sub(r"\\\n#\s+", "", path.read_text())
    return [line[line.index("#") + 1 :] for line in text.splitlines() if re.search(r"(^|\s)#", line)]


def is_command(comment: str) -> bool:
    return comment.startswith("   ")


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Name and options of a command line, as the command line itself reads them."""
    register()
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    return command.name, command.make_context(command.name, arguments).params


def try_command(words: list[str], recipe: Path) -> None:
    if "flatout" not in words:
        words = ["flatout", "train", str(recipe), *words]
    name, options = parsed(words[words.index("flatout") + 1 :])
    settings = parse_assignments(options.get("assignments") or []) | {"data.path": "elsewhere"}
    if name == "suite":
        suite = load_suite(options["file"], settings)
        for experiment in suite.experiments:
            load_config(suite.recipe, experiment.overrides)
    elif name == "simulate":
        assert CliRunner().invoke(app, ["simulate", str(options["file"])]).exit_code == 0
    elif "config" in options:
        load_config(options["config"], settings)


@pytest.mark.parametrize(
    ("path", "line"),
    [(path.relative_to(ROOT), text.strip()) for path in FILES for text in comments(path) if is_command(text)],
    ids=str,
)
def test_what_a_comment_tells_to_type_works(path: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    assert all(Path(word).exists() for word in words if word.startswith("recipes/")), line
    if "flatout" in words or words[0].startswith("--"):
        try_command(words, path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_a_comment_tells_to_type_can_be_found(path: Path) -> None:
    hidden = [text for text in comments(path) if TOLD.search(text) and not is_command(text)]
    assert not hidden, "give a command or setting a line of its own: #   flatout ..."
