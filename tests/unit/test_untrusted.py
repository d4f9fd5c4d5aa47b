"""Files from anywhere: bounded in time and memory, and one line for what breaks a limit."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout import untrusted
from flatout.errors import BadFile
from flatout.untrusted import check_shape, number, parse_json, parse_yaml, read_bytes, read_json_lines, read_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 8)}]\n" for level in range(1, 20)
)
BAD_YAML = {
    "a bomb of aliases": (BOMB, "more than 10000 values, its aliases unfolded"),
    "a list that holds itself": ("a: &a [*a]", "an alias refers to what it is a part of"),
    "a mapping that holds itself": ("&a {b: *a}", "an alias refers to what it is a part of"),
    "a merge of itself": ("a: &a {<<: *a}", "an alias refers to what it is a part of"),
    "deep": ("[" * 10_000, "nested more than 32 deep"),
    "deep blocks": ("- " * 10_000, "nested more than 32 deep"),
    "long": ("- a\n" * 20_000, "more than 10000 values"),
    "large": ("#" * 2**20, "more than 524 kB"),
    "an integer of 5,000 digits": ("a: " + "9" * 5000, "not valid YAML"),
    "a hexadecimal one": ("a: 0x" + "f" * 5000, "a number beyond 1e+40"),
    "no date": ("a: 2026-99-99", "not valid YAML"),
    "a date as key": ("2026-01-01: x", "a key is neither a word nor a number"),
    "an object": ("!!python/object:os.system {}", "not valid YAML"),
    "half a character": (r'a: "\ud800"', "half a character"),
}
BAD_JSON = {
    "deep": ("[" * 100_000, "nested more than 32 deep"),
    "just too deep": ("[" * 33 + "]" * 33, "nested more than 32 deep"),
    "NaN": ('{"a": NaN}', "NaN is no number in JSON"),
    "overflow": ('{"a": 1e999}', "a number beyond 1e+40"),
    "a hundred digits": ('{"a":' + "9" * 100 + "}", "a number beyond 1e+40"),
    "5,000 digits": ("9" * 5000, "not valid JSON"),
    "half a character": (r'{"a": "\ud800"}', "half a character"),
    "cut": ('{"a": ', "not valid JSON"),
}


@pytest.mark.parametrize("kind", BAD_YAML)
def test_yaml_beyond_a_limit(kind: str) -> None:
    text, said = BAD_YAML[kind]
    with pytest.raises(BadFile) as caught:
        parse_yaml(text, "recipe.yaml")
    assert said in str(caught.value)
    assert "recipe.yaml" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_anchors_that_people_write_are_read() -> None:
    text = 'base: &base {lr: 0.1, epochs: 3}\ntrain: {<<: *base, epochs: 5}\nsizes: {0: 64, 4: 128}\nodd: "\\U0001F600"'
    values = parse_yaml(text, "")
    assert values["train"] == {"lr": 0.1, "epochs": 5}
    assert (values["sizes"], values["odd"]) == ({0: 64, 4: 128}, "\U0001f600")


@pytest.mark.parametrize("kind", BAD_JSON)
def test_json_beyond_a_limit(kind: str) -> None:
    text, said = BAD_JSON[kind]
    with pytest.raises(BadFile) as caught:
        parse_json(text, "summary.json")
    assert said in str(caught.value)


def test_json_as_flatout_writes_it() -> None:
    values = {"name": "caf\udce9 \U0001f600", "loss": 3e38, "bytes": 2**60, "deep": [[[[{"a": [1e-30]}]]]]}
    assert parse_json(json.dumps(values), "") == values
    assert parse_json('{"metric": NaN}', "", finite=False)["metric"] != 0


NOT_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "a pipe or a device"),
    "zeros without end": (lambda path: path.symlink_to("/dev/zero"), "a pipe or a device"),
    "a directory": (Path.mkdir, "a directory"),
    "a loop": (lambda path: path.symlink_to(path), "cannot read"),
    "a terabyte": (lambda path: (path.touch(), os.truncate(path, 2**40)), "1.1 TB, more than the limit of 1 kB"),
    "not UTF-8": (lambda path: path.write_bytes(b"\xff"), "cannot read"),
}


@pytest.mark.parametrize("kind", NOT_FILES)
def test_what_is_no_file_is_not_read(tmp_path: Path, kind: str) -> None:
    make, said = NOT_FILES[kind]
    make(tmp_path / "given")
    with pytest.raises(BadFile, match=said):
        read_text(tmp_path / "given", 1000)


def test_lines_without_end_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_LINE_CHARACTERS", 50)
    path = tmp_path / "spans.jsonl"
    path.write_text('{"a": 1}\n' + "x" * 500 + '\n[1]\n{"a": 1e999}\n{"a": 2}\n{"a": ')
    assert list(read_json_lines(path)) == [{"a": 1}, {"a": 2}]
    assert list(read_json_lines(tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1.5", 1.5), ("", None), (None, None), ("x", None), ("inf", None), ("nan", None), ("1e308", None), ([], None)],
)
def test_a_cell_is_a_number_or_nothing(cell: object, value: float | None) -> None:
    assert number(cell) == value


def test_a_wrong_type_is_named_with_its_place() -> None:
    shape = {"time": {"parts": "amounts", "wall_seconds": "amount"}, "lines": [{"usd": "amount"}], "ok": "flag"}
    check_shape({"time": {"parts": {"a": 1}, "wall_seconds": None, "other": []}, "lines": [{}]}, shape, "summary.json")
    for values, said in [
        ({"time": 5}, "time is 5, expected keys with values"),
        ({"time": {"wall_seconds": -1}}, "time.wall_seconds is -1, expected a number, not below 0"),
        ({"time": {"wall_seconds": True}}, "time.wall_seconds is True"),
        ({"lines": [{}, {"usd": "x"}]}, "lines[1].usd is 'x'"),
        ({"lines": {}}, "lines is {}, expected a list"),
        ([], "it is [], expected keys with values"),
    ]:
        with pytest.raises(BadFile) as caught:
            check_shape(values, shape, "summary.json")
        assert said in str(caught.value)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(_VALUES)
def test_both_loaders_of_yaml_read_the_same(values: object) -> None:
    for flow in (True, False):
        text = yaml.safe_dump(values, default_flow_style=flow, allow_unicode=True)
        assert parse_yaml(text, "") == yaml.safe_load(text)


def test_a_limit_is_not_what_a_small_file_takes(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"12")
    assert read_bytes(tmp_path / "small", 2**60) == b"12"  # not to be allocated on any machine
