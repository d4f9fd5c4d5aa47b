"""Batches by a token budget: every pair once, never over the budget, the same number in every epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flatout.errors import DataError
from flatout.sampling.token_batches import TokenCut, batch_of, batch_order, cut_by_tokens, token_order

some = settings(max_examples=40, deadline=None)
lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(2, 60)), min_size=1, max_size=400)


def columns(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([pair[0] for pair in pairs], np.int64), np.array([pair[1] for pair in pairs], np.int64)


def epoch(cut: TokenCut, seed: int, number: int) -> list[NDArray[np.int64]]:
    order = token_order(cut, seed, number)
    return [batch_of(cut, order, batch) for batch in batch_order(cut, seed, number).tolist()]


@some
@given(lengths, st.integers(128, 2000), st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_every_pair_once_within_the_budget(pairs: list[tuple[int, int]], budget: int, seed: int, number: int) -> None:
    source, target = columns(pairs)
    batches = epoch(cut_by_tokens(source, target, budget), seed, number)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(len(pairs)))
    for ids in batches:
        assert 0 < len(ids) * (source[ids].max() + target[ids].max()) <= budget


def test_little_is_padding() -> None:
    chance = np.random.default_rng(0)
    source = chance.integers(3, 40, 5000)
    target = np.maximum(2, source + chance.integers(-4, 5, 5000))
    batches = epoch(cut_by_tokens(source, target, 4096), 0, 0)
    padded = sum(len(ids) * (source[ids].max() + target[ids].max()) for ids in batches)
    assert (source + target).sum() / padded > 0.9
    assert padded / (4096 * len(batches)) > 0.85  # and batches are full


def test_other_epochs_and_seeds_have_other_batches_but_as_many() -> None:
    source, target = columns([(5 + i % 3, 6 + i % 5) for i in range(300)])
    cut = cut_by_tokens(source, target, 200)
    first, again, later, other = epoch(cut, 1, 0), epoch(cut, 1, 0), epoch(cut, 1, 1), epoch(cut, 2, 0)
    assert [ids.tolist() for ids in first] == [ids.tolist() for ids in again]
    for different in (later, other):
        assert len(different) == len(first)
        assert {tuple(sorted(ids.tolist())) for ids in different} != {tuple(sorted(ids.tolist())) for ids in first}


def test_batches_are_pinned() -> None:
    """A change here breaks resuming every run made before it."""
    source, target = columns([(3, 4), (9, 8), (3, 4), (2, 3), (10, 7), (4, 4)])
    assert [ids.tolist() for ids in epoch(cut_by_tokens(source, target, 32), 0, 0)] == PINNED


PINNED = [[0, 3, 2, 5], [1], [4]]


def test_a_pair_that_is_longer_than_the_budget_is_an_error() -> None:
    with pytest.raises(DataError, match=r"batch_tokens is 30 but the longest sentence pair takes 60 tokens"):
        cut_by_tokens(np.array([3, 30]), np.array([3, 28]), 30)
