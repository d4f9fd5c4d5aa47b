"""Charts and pages as text: what is drawn, what is escaped, how large it gets."""

import json
import math
import re
from html import unescape
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from flatout.reports.charts import Series, area_chart, line_chart, scatter_chart, thin, ticks
from flatout.reports.page import note, page, pairs, preformatted, section, table, tiles
from flatout.reports.strips import Block, stacked, strips
from flatout.units import format_seconds

ATTACK = "<script>alert(1)</script>\"'&"
values = st.one_of(st.none(), st.floats())


def data(chart: Markup) -> dict[str, object]:
    found: dict[str, object] = json.loads(unescape(re.search(r'data-chart="([^"]*)"', chart)[1]))  # type: ignore[index]
    return found


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(float(i), 1.0) for i in range(200_000)]
    points[123_456] = (123_456.0, 99.0)
    points[5] = (5.0, -7.0)
    kept = thin(points)
    assert len(kept) <= 1000
    assert (123_456.0, 99.0) in kept
    assert (5.0, -7.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thin(points[:10]) == points[:10]


@given(st.lists(values, max_size=3000))
def test_any_values_give_a_well_formed_chart_or_none(column: list[float | None]) -> None:
    chart = line_chart("Loss", [Series("a", [(float(i), y) for i, y in enumerate(column)])], "step")
    finite = [y for y in column if y is not None and abs(y) < 1e100]
    assert bool(chart) == bool(finite)
    if chart:
        assert "nan" not in chart
        assert "inf" not in chart
        json.dumps(data(chart))


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_are_few_round_and_inside(low: float, length: float) -> None:
    high = low + length
    marks = ticks(low, high)
    assert 1 <= len(marks) <= 12 or high == low or length < 1e-9 * abs(low)
    slack = 1e-6 * length + 2 * math.ulp(abs(low) + length)  # neighbours of a large number are far apart
    assert all(low - slack <= mark <= high + slack for mark in marks[1:-1])


def test_a_gap_is_a_gap() -> None:
    chart = line_chart("Loss", [Series("a", [(0, 1.0), (1, None), (2, 3.0), (3, math.nan), (4, 5.0)])], "step")
    (path,) = re.findall(r'class="curve" d="([^"]*)"', chart)
    assert path.count("M") == 3
    assert [p[1] for p in data(chart)["series"][0]["points"]] == [1, None, 3, None, 5]  # type: ignore[index]


def test_every_name_is_escaped() -> None:
    pieces = [
        line_chart(ATTACK, [Series(ATTACK, [(0, 1.0), (1, 2.0)]), Series("b", [(0, 1.0)])], ATTACK, ATTACK, ATTACK,
                   marks=[(0.5, ATTACK)]),
        scatter_chart(ATTACK, [(0, 1.0), (1, 2.0)], ATTACK, ATTACK),
        area_chart(ATTACK, [{ATTACK: 1.0}], (0, 1), ATTACK, ATTACK),
        strips(ATTACK, [(ATTACK, [Block(0, 1, ATTACK, ATTACK)], ATTACK)], (0, 1), ATTACK, ATTACK, keys=[(ATTACK,) * 3]),
        table([ATTACK, "b"], [[ATTACK, 1]], ATTACK), pairs([(ATTACK, ATTACK)]), tiles([(ATTACK, ATTACK, ATTACK)]),
        note(ATTACK), preformatted(ATTACK), section(ATTACK, Markup("<p></p>")),
    ]  # fmt: skip
    for piece in pieces:
        assert "<script" not in piece
        assert "alert(1)" in piece
        ElementTree.fromstring(f"<div>{piece.replace(' hidden', '')}</div>")
    whole = page(ATTACK, Markup("").join(pieces))
    assert whole.count("<script") == 1


def test_control_characters_and_broken_utf8_are_shown_as_escapes() -> None:
    whole = page("t", pairs([("a\x1b[31m", "b\udcff\u202e")]))
    whole.encode("utf-8")
    assert "a\\x1b[31m" in whole
    assert "b\\udcff\\u202e" in whole


def test_blocks_follow_each_other_and_say_what_they_are() -> None:
    blocks = stacked({"forward": 3.0, "data_wait": 0.0, "backward": 6.0}, 9.0, format_seconds)
    assert [(b.start, b.length) for b in blocks] == [(0.0, 3.0), (3.0, 6.0)]
    assert blocks[1].title == "backward: 6 s, 66.7 %"
    chart = strips("x", [("epoch 1", blocks, "9 s")], (0, 9))
    assert re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', chart) == [("0.00", "333.33"), ("333.33", "666.67")]
    assert 'aria-label="epoch 1: forward: 3 s, 33.3 %; backward: 6 s, 66.7 %"' in chart


def test_areas_reach_the_top() -> None:
    chart = area_chart("x", [{"forward": 0.25, "backward": 0.75}, {"forward": 1.0}], (0, 10), "minutes")
    forward, backward = re.findall(r'block" d="M0 ([\d.]+)', chart)
    assert (float(forward), float(backward)) == (112.5, 0.0)


def test_a_chart_says_in_words_what_it_shows() -> None:
    chart = line_chart("Top-1", [Series("top-1", [(0, 10.0), (1, 80.0), (2, 75.0)])], "epoch", " %")
    assert 'aria-label="Top-1: top-1 from 10 % to 75 %, lowest 10 %, highest 80 %"' in chart


@pytest.mark.parametrize("rows", [[], [["a", None]], [["a", Markup("<b>1</b>")]]])
def test_tables_of_little(rows: list[list[object]]) -> None:
    found = table(["a", "b"], rows)
    assert bool(found) == bool(rows)
