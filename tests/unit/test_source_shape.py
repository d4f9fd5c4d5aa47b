"""What the source must look like as a whole: no cycles, no second class of a name, nothing too long to read."""

import ast
import graphlib
from collections import defaultdict
from pathlib import Path

import grimp

CODE = Path(__file__).parents[2] / "src/flatout"
FILES = sorted(CODE.rglob("*.py"))
MOST_LINES, MOST_METHODS = 400, 20

SAME_NAME: dict[str, str] = {
    "FlatoutRecording": "the callback of each trainer library goes by one name; nobody imports two",
}
"""Class names that two files have on purpose, and why."""
MANY_METHODS: dict[str, str] = {
    "ScriptLedger": "one begin and one end for each hook, over one stack of spans",
    "Recorder": "spans, lanes and the file of one thread; hooks begin and end spans in different functions",
}
"""Classes with more methods than the rest may have, and why they are one class."""


def classes() -> list[tuple[Path, ast.ClassDef]]:
    trees = [(path, ast.parse(path.read_text())) for path in FILES]
    return [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_class_name_is_there_twice() -> None:
    homes = defaultdict(list)
    for path, node in classes():
        homes[node.name].append(str(path.relative_to(CODE)))
    twice = {name: files for name, files in homes.items() if len(files) > 1 and name not in SAME_NAME}
    assert twice == {}
    assert [name for name in SAME_NAME if len(homes[name]) < 2] == []  # reasons that are not needed any more


def test_no_file_is_longer_than_the_limit() -> None:
    lengths = {str(path.relative_to(CODE)): path.read_text().count("\n") for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_class_has_more_methods_than_the_limit_without_a_reason() -> None:
    counts: dict[str, int] = {}
    for _, node in classes():
        methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        counts[node.name] = max(methods, counts.get(node.name, 0))
    assert {name: count for name, count in counts.items() if count > MOST_METHODS and name not in MANY_METHODS} == {}
    assert [name for name in MANY_METHODS if counts.get(name, 0) <= MOST_METHODS] == []


def test_the_formatter_is_never_switched_off() -> None:
    assert [str(path.relative_to(CODE)) for path in FILES if "# fmt:" in path.read_text()] == []


def test_no_import_leads_back_to_where_it_came_from() -> None:
    """Imports inside functions count; those for the type checker do not."""
    graph = grimp.build_graph("flatout", exclude_type_checking_imports=True)
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None
