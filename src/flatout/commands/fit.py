"""Will it fit: peak memory by part, and the largest batch on each card with and without what saves memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flatout.commands.plan import batch_of, recipe_notes, side_of
from flatout.commands.planned_data import KNOWN
from flatout.commands.traced_model import Shape, traced_work
from flatout.config.loading import load_config
from flatout.errors import ConfigError
from flatout.planning.cards import Card, find_card, load_cards
from flatout.planning.estimate import arithmetic_for
from flatout.planning.memory import MARGIN, MemoryParts, MemorySetup, largest_batch, memory_of
from flatout.planning.work import TracedWork
from flatout.reports.plan_text import fit_text as fit_text


def fit_recipe(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any], gpus: Sequence[str]
) -> dict[str, Any]:
    """For the named cards, or all; nothing of the dataset is read: 1000 classes where the recipe names none."""
    config = load_config(source, overrides).config
    cards = [find_card(name) for name in gpus] if gpus else list(load_cards().values())
    classes = config.data.classes if isinstance(config.data.classes, int) else KNOWN["imagenet"].classes
    shape = Shape(config, classes, side_of(config))
    train, batch = config.train, batch_of(config)
    setup = MemorySetup(batch, train.accumulate)

    @cache
    def work(narrow: bool, checkpointing: bool) -> TracedWork | None:
        """None where the model cannot recompute its activations."""
        try:
            return traced_work(shape, narrow, checkpointing)
        except ConfigError:
            if checkpointing == train.checkpointing:
                raise
            return None

    def on(card: Card) -> dict[str, Any]:
        narrow = arithmetic_for(card, train.precision, train.tf32) == "amp"
        held = _held(work(narrow, train.checkpointing), setup)
        return {
            "gpu": card.name,
            "memory_bytes": card.memory_bytes,
            "fits": held.fits(card.memory_bytes),
            "peak_bytes": held.peak_bytes,
            "precision": "16 bits" if narrow else "32 bits",
            "largest_batch": _largest(card, setup, narrow, train.checkpointing, work),
        }

    first = arithmetic_for(cards[0], train.precision, train.tf32) == "amp"
    parts = _held(work(first, train.checkpointing), setup).to_dict()
    return {
        "model": config.model.name,
        "batch": batch,
        "precision": "16 bits" if first else "32 bits",
        "parts": parts,
        "cards": [on(card) for card in cards],
        "margin": MARGIN,
        "notes": recipe_notes(config),
        "basis": f"traced on fake tensors; workspace, context and fragments as on cards known; {MARGIN:.0%} to spare",
    }


def _held(work: TracedWork | None, setup: MemorySetup) -> MemoryParts:
    assert work is not None
    return memory_of(work, setup)


def _largest(card: Card, setup: MemorySetup, narrow: bool, checkpointing: bool, work: Any) -> dict[str, int | None]:
    def size(narrow: bool, checkpointing: bool, setup: MemorySetup) -> int | None:
        traced = work(narrow, checkpointing)
        return None if traced is None else largest_batch(traced, setup, card.memory_bytes)

    return {
        "as it is": size(narrow, checkpointing, setup),
        "32 bits": size(False, checkpointing, setup),
        "16 bits": size(True, checkpointing, setup),
        "checkpointing": size(narrow, True, setup),
        "accumulate 4": size(narrow, checkpointing, MemorySetup(setup.batch, 4)),
        "fsdp on 4 cards": size(narrow, checkpointing, MemorySetup(setup.batch, setup.accumulate, 4, sharded=True)),
    }
