"""Where the order of a job's shared batches begins."""

import os
from pathlib import Path

import pytest

from flatout.service.client.opening import _remembered, _rememberer


def test_what_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "shared_order.json"
    assert _remembered(None) is None
    assert _remembered(path) is None
    _rememberer(path)(3, 41)
    assert _remembered(path) == (3, 41)


@pytest.mark.parametrize(
    "text", ["[1]", "[1, null]", "[-1, 0]", "[true, 1]", "[1, 9e99]", "[" * 5000, '{"a": 1}', "5", "\xff"]
)
def test_a_damaged_order_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "shared_order.json").write_text(text, encoding="latin-1")
    assert _remembered(tmp_path / "shared_order.json") is None


def test_an_order_that_never_ends_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**42)
    os.mkfifo(tmp_path / "pipe")
    assert _remembered(tmp_path / "large") is None
    assert _remembered(tmp_path / "pipe") is None
