"""Tables keep figures to the right, names to the left, and remarks below their row."""

import pytest
from markupsafe import Markup

from flatout.analysis.mean_epoch import MeanEpoch
from flatout.analysis.suite import SuiteRow, row_from_json
from flatout.reports.page import table
from flatout.reports.suite_table import as_json, suite_sections


@pytest.mark.parametrize("cell", ["1,234", "+3.3 s", "$0.01", "n/a", "-2.8 points", "1.5 s (1 s to 2 s)"])
def test_figures_stand_to_the_right(cell: str) -> None:
    assert '<td class="number">' in table(("a", "b"), [("x", cell)])


@pytest.mark.parametrize("cell", ["0-circle", "12-star", "+1 s here, +2 s there", "x1"])
def test_what_only_begins_like_a_figure_is_a_text(cell: str) -> None:
    assert '<td class="number">' not in table(("a", "b"), [("x", cell)])


def test_a_remark_is_below_its_row_over_all_columns() -> None:
    found = table(("a", "b"), [("x", "1"), ("y", "2")], remarks=[Markup(""), Markup("why")])
    assert found.count('colspan="2"') == 1
    assert found.index("why") > found.index("y")


def test_the_table_of_a_suite_is_the_same_from_its_file() -> None:
    epoch = MeanEpoch(10, 0.1, 1.0, 1.5, {"data_wait": 0.5}, {"forward": 1.5})
    rows = [SuiteRow("a", {"batch": [32], "memory": [1e9, None]}, [epoch], ["it failed"], "it failed; as planned")]
    again = [row_from_json(each) for each in as_json("suite", rows)["rows"]]
    assert suite_sections(again) == suite_sections(rows)
