"""Balanced epochs: equal shares of the classes, each sample once before any comes again, the same on any ranks."""

import numpy as np
import pytest
from numpy.typing import NDArray

from flatout.sampling import balanced_order

LABELS = np.repeat([0, 1, 2, 4], [50, 7, 3, 1])


def drawn(epochs: int, seed: int = 3, labels: NDArray[np.int64] = LABELS) -> list[NDArray[np.int64]]:
    return [balanced_order(labels, seed, epoch)[0] for epoch in range(epochs)]


def test_an_epoch_has_as_many_draws_as_samples_and_equal_shares_of_the_classes() -> None:
    totals = np.zeros(5, int)
    for ids in drawn(9):
        assert len(ids) == len(LABELS)
        counts = np.bincount(LABELS[ids], minlength=5)
        assert counts[3] == 0
        assert np.ptp(counts[[0, 1, 2, 4]]) <= 1
        totals += counts
        assert np.ptp(totals[[0, 1, 2, 4]]) <= 1  # over any number of epochs


def test_a_sample_comes_again_only_when_all_of_its_class_came() -> None:
    seen = np.zeros(len(LABELS), int)
    for ids in drawn(20):
        seen += np.bincount(ids, minlength=len(LABELS))
        for label in np.unique(LABELS):
            assert np.ptp(seen[label == LABELS]) <= 1


def test_it_is_a_function_of_seed_and_epoch() -> None:
    first, again = drawn(4), drawn(4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], drawn(1, seed=4)[0])


def test_draws_of_one_sample_have_keys_of_their_own() -> None:
    ids, keys = balanced_order(LABELS, 3, 0)
    assert len(np.unique(keys)) == len(keys)
    assert len(np.unique(ids)) < len(ids)
    firsts = keys < 1 << 40
    assert np.array_equal(keys[firsts], ids[firsts])
    assert np.array_equal(keys & ((1 << 40) - 1), ids)


@pytest.mark.parametrize("labels", [np.zeros(0, np.int64), np.zeros(5, np.int64), np.arange(4)])
def test_few_or_no_samples(labels: NDArray[np.int64]) -> None:
    ids, _ = balanced_order(labels, 0, 2)
    assert sorted(ids.tolist()) == list(range(len(labels)))
