"""Are cards in the right order? Spearman's correlation as published, beside what the published rows themselves allow."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np
from rows import Row

from flatout.planning.cards import Card

Scored = Sequence[tuple[Row, float]]
ENOUGH, MOST_ORDERED = 5, 9
"""Cards of a group at least; and at most for trying every order of them."""
WANTED = 0.95


def gap_noise(rows: Sequence[Row]) -> float:
    """How far the gap of two cards, in logarithms, moves from one software version of a source to another (root mean
    square, same model and precision). No row was published twice under the same conditions."""
    speeds: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        speeds[row.model, row.arithmetic, row.suite][row.card.name] = np.log(row.samples_per_second)
    moved = []
    for one, other in combinations(sorted(speeds), 2):
        if one[:2] == other[:2] and one[2].partition(" ")[0] == other[2].partition(" ")[0]:
            changes = [speeds[other][card] - speeds[one][card] for card in speeds[one].keys() & speeds[other].keys()]
            moved += [a - b for a, b in combinations(changes, 2)]
    return float(np.sqrt(np.mean(np.square(moved)))) if moved else 0.0


def spearman(measured: Sequence[float], told: Sequence[float], tie: float = 0.0) -> float:
    """Pairs whose measured logarithms differ by less than `tie` count neither way; 0 is the plain coefficient."""
    speeds = np.log(np.array([measured, told], dtype=float))
    above = np.sign(speeds[:, :, None] - speeds[:, None, :])
    above[:, np.abs(speeds[0][:, None] - speeds[0]) < tie] = 0.0
    return float(np.corrcoef(above.sum(axis=2))[0, 1])


def best_constant(measured: Sequence[float], cards: Sequence[str]) -> float:
    """No predictor with one figure a card correlates better with the measured ranks, whatever the figures are."""
    ranks = np.sign(np.subtract.outer(measured, measured)).sum(axis=1)
    means = np.array([np.mean([r for r, c in zip(ranks, cards, strict=True) if c == card]) for card in cards])
    return float(np.sqrt(np.square(means).sum() / np.square(ranks).sum()))


def best_by_specs(measured: Sequence[float], cards: Sequence[Card]) -> float | None:
    """The same if no card may be told slower than one that it beats in every figure of its specs."""
    named = {card.name: card for card in cards}
    if len(named) > MOST_ORDERED:
        return None
    return max(
        spearman(measured, [2.0 ** order.index(card.name) for card in cards]) for order in _orders(named, tuple(named))
    )


def beats(card: Card, other: Card) -> bool:
    """In one figure of its specs, and behind in none."""
    own, theirs = _figures(card), _figures(other)
    return all(mine >= its for mine, its in zip(own, theirs, strict=True)) and own != theirs


def _figures(card: Card) -> tuple[float, ...]:
    tensor = (card.fp16_tensor_tflops or 0.0, card.tf32_tflops or 0.0)
    return (card.memory_gb_s, card.fp32_tflops, *tensor, card.watts)


def _orders(named: dict[str, Card], left: tuple[str, ...]) -> Iterator[list[str]]:
    """Slowest first."""
    if not left:
        yield []
    for name in left:
        if not any(beats(named[name], named[other]) for other in left):
            for rest in _orders(named, tuple(o for o in left if o != name)):
                yield [name, *rest]


def ranking(rows: Sequence[Row], scored: Scored) -> list[str]:
    """Both readings of "for each model", each raw and with the published rows' own noise as ties."""
    tie = gap_noise(rows)
    out = [
        "",
        f"Rank correlation of cards (Spearman; {ENOUGH} cards or more; each row under its own conditions). Tied:",
    ]
    out[-1] += f" pairs measured less than {100 * (np.exp(tie) - 1):.1f} % apart count neither way; that is how far the"
    out[-1] += " gap of two cards moves (root mean square) between two software versions of one source."
    out += _table("One model, precision and suite", scored, tie, lambda r: f"{r.model}, {r.arithmetic}, {r.suite}")
    out += _table("One model and precision, all suites together", scored, tie, lambda r: f"{r.model}, {r.arithmetic}")
    out += ["", "Ceilings, for predictors with one figure a card: any figures; figures in the order of the specs"]
    out[-1] += f" (tried up to {MOST_ORDERED} cards, below {WANTED} only)."
    return out


def _table(title: str, scored: Scored, tie: float, key: Callable[[Row], str]) -> list[str]:
    groups: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    for row, seconds in scored:
        groups[key(row)].append((row, seconds))
    lines, found = [], []
    for name, each in sorted(groups.items()):
        cards, measured = [r.card for r, _ in each], [r.samples_per_second for r, _ in each]
        if len({card.name for card in cards}) < ENOUGH:
            continue
        told = [r.batch / seconds for r, seconds in each]
        raw, tied = found_here = spearman(measured, told), spearman(measured, told, tie)
        found.append(found_here)
        ceiling = best_by_specs(measured, cards) if min(found_here) < WANTED else None
        lines.append(
            f"| {name} | {len(each)} | {len({card.name for card in cards})} | {raw:.3f} | {tied:.3f} "
            f"| {best_constant(measured, [card.name for card in cards]):.3f} | {'' if ceiling is None else f'{ceiling:.3f}'} |"
        )
    reached = [sum(value >= WANTED for value in column) for column in zip(*found, strict=True)] or [0, 0]
    told_once = f"{WANTED} or more: {reached[0]} of {len(found)} raw, {reached[1]} of {len(found)} tied."
    head = "| model | rows | cards | raw | tied | at best, any | at best, by specs |"
    return ["", f"{title}: {told_once}", "", head, "|---" * 7 + "|", *lines]
