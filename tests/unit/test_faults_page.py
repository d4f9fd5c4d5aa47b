"""docs/faults.md names a test for every fault, and every test that it names is there."""

import re
from pathlib import Path

import pytest

from chaos.run import PAGE, Row, read_page, row_result
from flatout.config.loading import load_config
from flatout.errors import ConfigError

TESTS = Path(__file__).parents[1]


def test_every_row_is_there_once() -> None:
    wanted = [*map(str, range(1, 56)), *(f"S{number}" for number in range(1, 21))]
    assert [row.number for row in read_page(PAGE)] == wanted


def test_every_named_test_exists() -> None:
    for row in read_page(PAGE):
        assert bool(row.tests) != (row.words == "not yet"), row
        for name in row.tests:
            file, function = name.split("::")
            assert re.search(rf"^def {function}\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_results_of_a_row() -> None:
    row = Row("1", "fault", "", ("a.py::test_a", "b.py::test_b"))
    assert row_result(row, {"a.py::test_a": {"passed"}, "b.py::test_b": {"passed"}}) == "passed"
    assert row_result(row, {"a.py::test_a": {"passed"}, "b.py::test_b": {"passed", "failed"}}) == "FAILED"
    assert row_result(row, {"a.py::test_a": {"passed"}, "b.py::test_b": {"skipped"}}) == "skipped in part"
    assert row_result(row, {"a.py::test_a": {"passed"}}) == "NOT RUN"
    assert row_result(Row("2", "fault", "not yet", ()), {}) == "not yet"


def test_yaml_builds_no_objects(tmp_path: Path) -> None:
    path, made = tmp_path / "evil.yaml", tmp_path / "made"
    path.write_text(f"name: !!python/object/apply:os.mkdir ['{made}']\n")
    with pytest.raises(ConfigError):
        load_config(path)
    assert not made.exists()
    code = [each.read_text(encoding="utf-8") for each in (TESTS.parent / "src").rglob("*.py")]
    assert not [text for text in code if re.search(r"yaml\.(load|unsafe_load|full_load)\(|yaml\.Loader", text)]
