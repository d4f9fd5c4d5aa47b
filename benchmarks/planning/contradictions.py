"""Published rows that the cards' own figures contradict: measured, and still no ground to fit a card on.

Much makes a measured card slower than it is (a container without TF32, a power limit, a busy host), nothing makes it
faster. So where a card was published slower than one that it beats in every figure of its specs, the slow side is in
doubt; and what slowed it belongs to the session, so that the doubt is about its rows of that precision and suite. No
prediction is looked at, and only the rows that a fit is given: a card that is left out casts no doubt and is under none.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from ranking import beats, gap_noise
from rows import Row

NOISES = 2.0
"""How many times as far as the gap of two cards moves between two versions of a suite. Chance alone goes past that once
in forty pairs of equally fast cards, and these are not equally fast: one beats the other in every figure."""


class Contradiction(NamedTuple):
    slower: Row
    faster: Row
    """Of a card that is beaten in every figure, and with a batch no larger."""
    gap: float
    """In logarithms of samples per second."""


def contradictions(rows: Sequence[Row]) -> list[Contradiction]:
    """Between rows of one model, precision, layout and software. None where no source measured the same again with newer software: how much is noise is then not known."""
    least = NOISES * gap_noise(rows)
    if least == 0:
        return []
    alike: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.card.sure:  # a disputed figure contradicts nothing
            alike[row.model, row.precision, row.channels_last, row.era].append(row)
    found = []
    for pair in (pair for group in alike.values() for pair in combinations(group, 2)):
        slower, faster = sorted(pair, key=lambda row: row.samples_per_second)
        gap = float(np.log(faster.samples_per_second / slower.samples_per_second))
        if gap > least and beats(slower.card, faster.card) and slower.batch >= faster.batch:
            found.append(Contradiction(slower, faster, gap))
    return found


def trusted(rows: Sequence[Row]) -> list[Row]:
    """Those to fit on."""
    doubted = {_session(each.slower) for each in contradictions(rows)}
    return [row for row in rows if _session(row) not in doubted]


def _session(row: Row) -> tuple[str, str, str]:
    return row.card.name, row.precision, row.suite


def doubts(rows: Sequence[Row]) -> list[str]:
    """For the report: what is scored and not fitted, and why."""
    why: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for slower, faster, gap in contradictions(rows):
        why[_session(slower)].append(
            f"{slower.model}: {faster.card.name}, behind in every figure, {np.expm1(gap):.0%} faster"
        )
    return [
        f"{sum(_session(row) == session for row in rows)} rows of {', '.join(session)} ({'; '.join(told)})"
        for session, told in why.items()
    ]
