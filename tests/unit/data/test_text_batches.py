"""Batches of sentence pairs: the same whoever prepares them, and cut the same for any number of ranks."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from flatout.data.batch import Failure, LoadStats
from flatout.data.text.batches import TextBatch, TextBatchPlan, TextSource
from flatout.data.text.parallel_text import TextSplit, Tokens
from flatout.data.text.vocabulary import BEGIN, END, PAD
from flatout.errors import TooManyQuarantined

BAD = 7


@pytest.fixture(scope="module")
def recipe() -> TextBatchPlan:
    chance = np.random.default_rng(0)
    source, target = (
        Tokens.of([chance.integers(4, 99, chance.integers(1, 12)).tolist() for _ in range(90)]) for _ in range(2)
    )
    failures = {BAD: Failure(BAD, "train.en:8", "line 8 is empty")}
    split = TextSplit("train.en train.de", source, target, failures, (), 0, "", LoadStats())
    return TextBatchPlan(split, seed=3, batch_tokens=160)


def batches(recipe: TextBatchPlan, epoch: int = 0, start: int = 0, prefetch: int = 0) -> list[TextBatch]:
    with closing(TextSource(recipe, prefetch, 60.0, 0.5)) as source:
        return list(source.epoch(epoch, start))


def ids(found: list[TextBatch]) -> list[list[int]]:
    return [batch.sample_ids.tolist() for batch in found]


def test_every_usable_line_once_each_epoch(recipe: TextBatchPlan) -> None:
    for epoch in (0, 1):
        seen = sorted(number for each in ids(batches(recipe, epoch)) for number in each)
        assert seen == [number for number in range(90) if number != BAD]


def test_rows_hold_their_own_tokens(recipe: TextBatchPlan) -> None:
    for batch in batches(recipe):
        assert batch.source.numel() + batch.target.numel() <= recipe.batch_tokens
        assert (batch.mask is None) == bool((batch.source != PAD).all())
        for row, number in enumerate(batch.sample_ids.tolist()):
            source, target = recipe.split.source[number].tolist(), recipe.split.target[number].tolist()
            assert [token for token in batch.source[row].tolist() if token != PAD] == [*source, END]
            assert [token for token in batch.target[row].tolist() if token != PAD] == [BEGIN, *target, END]


def test_preparing_ahead_and_starting_in_the_middle_change_nothing(recipe: TextBatchPlan) -> None:
    whole = batches(recipe, epoch=5)
    for other in (batches(recipe, epoch=5, prefetch=3), whole[:4] + batches(recipe, epoch=5, start=4, prefetch=1)):
        assert ids(other) == ids(whole)
        assert all(torch.equal(one.source, two.source) for one, two in zip(other, whole, strict=True))


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_share_the_same_global_batches(recipe: TextBatchPlan, world_size: int) -> None:
    alone = ids(batches(recipe))
    ranks = [batches(replace(recipe, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for index, whole in enumerate(alone):
        slices = [found[index] for found in ranks]
        assert [number for batch in slices for number in batch.sample_ids.tolist()] == whole
        assert all(batch.whole_ids is not None and batch.whole_ids.tolist() == whole for batch in slices)


def test_ranks_may_take_turns(recipe: TextBatchPlan) -> None:
    """For validation: each batch whole, on one rank."""
    whole = replace(recipe, shuffle=False)
    turns = [ids(batches(replace(whole, rank=rank, world_size=3, whole_batches=True))) for rank in range(3)]
    together = ids(batches(whole))
    assert [turns[index % 3][index // 3] for index in range(len(together))] == together


def test_too_many_bad_lines_end_the_run(recipe: TextBatchPlan) -> None:
    with pytest.raises(TooManyQuarantined, match=r"1 of 90 lines of train.en train.de .* line 8 is empty"):
        TextSource(recipe, 0, 60.0, 0.001)
