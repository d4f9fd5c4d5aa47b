"""Nobody decides again: outside of decisions/ and config/ no code asks what `auto` means."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flatout

SOURCE = Path(flatout.__file__).parent
OPEN_KEYS = {"workers", "worker_kind", "prefetch", "memory", "stage", "shared_bytes", "log_every", "threads"}
"""Keys that may be auto, by name: `isinstance(config.threads, int)` asks the same as `config.threads != "auto"`."""
URLS = {
    # addresses that are not the dataset's
    "storage/__init__.py": "which store a URL names",
    "service/client/opening.py": "the address of a Redis",
    "service/transport/stores.py": "the address of a Redis",
    "service/producers/lambda_handler.py": "the address of a Redis",
    "diagnosis/rules/failed.py": "words of an error's text",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("decisions/", "config/")):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def is_word(node: ast.AST, word: str) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(is_word(each, word) for each in node.elts)
    return (isinstance(node, ast.Constant) and node.value == word) or (isinstance(node, ast.Name) and node.id == "AUTO")


def compares_with(tree: ast.AST, word: str) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(is_word(each, word) for each in (node.left, *node.comparators)):
            yield node
        if isinstance(node, ast.MatchValue) and is_word(node.value, word):
            yield node


def sniffs(tree: ast.AST) -> Iterator[ast.AST]:
    """isinstance(config.workers, int) and the like, of a recipe's section."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = node.args[0]
            if isinstance(asked, ast.Attribute) and asked.attr in OPEN_KEYS:
                yield node


def at(found: Iterator[ast.AST], name: str) -> list[str]:
    return [f"{name}:{getattr(node, 'lineno', getattr(getattr(node, 'value', None), 'lineno', 0))}" for node in found]


def test_nobody_else_compares_with_auto() -> None:
    assert [place for name, tree in modules() for place in at(compares_with(tree, "auto"), name)] == []


def test_nobody_else_asks_for_the_type_of_a_key_that_may_be_auto() -> None:
    assert [place for name, tree in modules() for place in at(sniffs(tree), name)] == []


def test_the_question_itself_stays_in_its_room() -> None:
    asked = [
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(each.name == "is_open" for each in node.names)
    ]
    assert asked == []


def test_nobody_else_tells_remote_data_by_its_path() -> None:
    found = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == "://"
    }
    assert found <= set(URLS)


def test_nobody_copies_a_number_of_another_room() -> None:
    text = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    copied = re.compile(r"\b_?FETCHERS\s*=|as data/\S+ chooses|# of data/")
    found = [path.relative_to(SOURCE).as_posix() for path, source in text.items() if copied.search(source)]
    assert found == ["decisions/loading.py"]


@pytest.mark.parametrize(
    ("code", "caught"),
    [
        ('if config.workers == "auto": ...', True),
        ('x = 1 if "auto" != wanted else 2', True),
        ('x = wanted in ("auto", "off")', True),
        ("x = wanted == AUTO", True),
        ('match wanted:\n    case "auto": ...', True),
        ("x = isinstance(config.threads, int)", True),
        ('changes = {"data.stage": "auto"}', False),
        ('def f(wanted: str = "auto"): ...', False),
    ],
)
def test_the_check_itself(code: str, caught: bool) -> None:
    tree = ast.parse(code)
    assert bool([*compares_with(tree, "auto"), *sniffs(tree)]) == caught
