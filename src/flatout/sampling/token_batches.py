"""Batches of sentence pairs of like length, cut by a token budget: pure functions, like order.py.

Pairs are sorted into cells by their two lengths, and the cells are walked along a path on which neighbours are alike.
An epoch shuffles the pairs inside each cell, then the batches. Where a batch ends depends on lengths alone, so every
epoch has the same number of batches and the budget holds in all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.errors import DataError
from flatout.sampling.order import epoch_order

_SOURCE_STEP, _TARGET_STEP = 4, 2  # lengths that share a cell; the target also pays for the output layer


@dataclass(frozen=True)
class TokenCut:
    """Which cell each pair is in, and where batches end when pairs stand in order of cell."""

    cells: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def batches(self) -> int:
        return len(self.ends)


def cut_by_tokens(source: NDArray[np.int64], target: NDArray[np.int64], batch_tokens: int) -> TokenCut:
    """`source` and `target` are lengths; a batch takes rows x (longest source + longest target) tokens at most."""
    row, column = -(-target // _TARGET_STEP), -(-source // _SOURCE_STEP)
    columns = int(column.max(initial=0)) + 1
    # every other row backwards, so that neighbours on the path have similar lengths
    cells = row * columns + np.where(row % 2, columns - 1 - column, column)
    order = np.argsort(cells, kind="stable")
    longest_source, longest_target = column[order] * _SOURCE_STEP, row[order] * _TARGET_STEP
    most = int((longest_source + longest_target).max(initial=0))
    if most > batch_tokens:
        raise DataError(
            f"data.batch_tokens is {batch_tokens} but the longest sentence pair takes {most} tokens; "
            f"set it to at least {most}, or lower data.max_tokens"
        )
    return TokenCut(cells.astype(np.int64), _ends(longest_source, longest_target, batch_tokens))


def _ends(source: NDArray[np.int64], target: NDArray[np.int64], batch_tokens: int) -> NDArray[np.int64]:
    ends, start = [], 0
    while start < len(source):
        window = slice(start, start + batch_tokens // max(1, int(source[start] + target[start])))
        widths = np.maximum.accumulate(source[window]) + np.maximum.accumulate(target[window])
        start += int(np.count_nonzero(widths * np.arange(1, len(widths) + 1) <= batch_tokens))
        ends.append(start)
    return np.array(ends, np.int64)


def token_order(cut: TokenCut, seed: int, epoch: int) -> NDArray[np.int64]:
    """Every pair once, in the order of one epoch before the batches are shuffled: position in `cells`."""
    shuffled = epoch_order(len(cut.cells), seed, epoch)
    return shuffled[np.argsort(cut.cells[shuffled], kind="stable")]


def batch_order(cut: TokenCut, seed: int, epoch: int) -> NDArray[np.int64]:
    """Which of the cut's batches comes first, second, ... in one epoch."""
    return epoch_order(cut.batches, seed, epoch)


def batch_of(cut: TokenCut, order: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """The pairs of the cut's batch `number`."""
    return order[int(cut.ends[number - 1]) if number else 0 : int(cut.ends[number])]
