"""Epochs that draw equally often from every class, however many samples it has: pure functions, like order.py.

Draws are dealt to the classes in turn, one each, over all epochs: draw d of the run belongs to class d mod classes, and
an epoch is the next `samples` draws. Within a class its samples come in a random order, each once before any comes
again, and that round goes on from one epoch to the next. So an epoch has as many draws as there are samples, no class
has two more than another, and of one class no sample was ever drawn two times more often than another.
"""

import numpy as np
from numpy.typing import NDArray

from flatout.sampling.counter import uniforms
from flatout.sampling.order import Uniforms, epoch_order

_ROUND_STREAM = 0xFFFE
REPEAT_SHIFT = 40
"""Above this bit of a draw's key stands how often the sample came before in the epoch."""


def balanced_order(
    labels: NDArray[np.int64], seed: int, epoch: int, numbers: Uniforms = uniforms
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sample ids of one epoch in order, and the key of each draw: the id itself where a sample comes for the first time
    in the epoch, another number each time after. Random numbers go by the key, so that no two draws look alike."""
    by_class = np.argsort(labels, kind="stable")
    starts = np.unique(labels[by_class], return_index=True)[1]
    members = np.split(by_class, starts[1:]) if len(labels) else []
    drawn = [
        _of_class(each, place, len(members), len(labels), seed, epoch, numbers) for place, each in enumerate(members)
    ]
    ids = np.concatenate([ids for ids, _ in drawn]) if drawn else np.zeros(0, np.int64)
    repeats = np.concatenate([repeats for _, repeats in drawn]) if drawn else np.zeros(0, np.int64)
    order = epoch_order(len(ids), seed, epoch, numbers)
    return ids[order], (ids + (repeats << REPEAT_SHIFT))[order]


def _of_class(
    members: NDArray[np.int64], place: int, classes: int, samples: int, seed: int, epoch: int, numbers: Uniforms
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The draws of one epoch that fall to the class at `place`, and which of them are repeats."""
    first, end = (-(-(samples * each - place) // classes) for each in (epoch, epoch + 1))
    draws = np.arange(first, end)
    rounds, positions = draws // len(members), draws % len(members)
    ids = np.empty(len(draws), np.int64)
    for each in np.unique(rounds).tolist():
        chosen = rounds == each
        ids[chosen] = members[_shuffled(members, seed, each, numbers)][positions[chosen]]
    return ids, _repeats(ids)


def _shuffled(members: NDArray[np.int64], seed: int, number: int, numbers: Uniforms) -> NDArray[np.int64]:
    """The order of one round of a class; `number` counts its rounds from the start of the run."""
    words = (numbers(seed, number, members, _ROUND_STREAM, 2) * 2.0**32).astype(np.uint64)
    return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable").astype(np.int64)


def _repeats(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each id came before in the array."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]])) if len(ids) else order
    first_of = np.repeat(starts, np.diff(np.concatenate([starts, [len(ids)]])))
    repeats = np.empty(len(ids), np.int64)
    repeats[order] = np.arange(len(ids)) - first_of
    return repeats
