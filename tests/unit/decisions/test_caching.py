"""Whether samples are kept: the arithmetic, the rules, and what they are worth for a run of other epochs."""

from pathlib import Path
from typing import Any

import pytest

from flatout.decisions.caching import (
    ASSUMED_EPOCHS,
    CacheChoice,
    SampleCosts,
    cache_without_looking,
    choose_stage,
    choose_tier,
    fill_or_not,
    needs_costs,
    stage_without_looking,
)
from flatout.errors import ConfigError, NoSpace

SMALL = SampleCosts(crop_seconds=22e-6, fill_seconds=25e-6, kept_seconds=3e-6)
PHOTO = SampleCosts(crop_seconds=750e-6, fill_seconds=1300e-6, kept_seconds=150e-6)
HUGE = SampleCosts(crop_seconds=10e-3, fill_seconds=100e-3, kept_seconds=1e-3)
NEVER = SampleCosts(crop_seconds=1e-3, fill_seconds=1e-3, kept_seconds=2e-3)


@pytest.mark.parametrize("costs", [SMALL, PHOTO, HUGE, NEVER, None])
@pytest.mark.parametrize("epochs", [0, 1])
def test_one_epoch_never_fills(costs: SampleCosts | None, epochs: int) -> None:
    assert fill_or_not(costs, epochs) == (False, "the run has one epoch and needs each sample once")


@pytest.mark.parametrize(
    ("costs", "epochs", "fills"),
    [
        (SMALL, 2, True), (SMALL, None, True), (PHOTO, 2, True), (PHOTO, None, True), (HUGE, None, False),
        (HUGE, 10, False), (HUGE, 12, True), (NEVER, 1000, False), (NEVER, None, False), (None, 2, True),
    ],
)  # fmt: skip
def test_it_is_filled_where_the_whole_run_takes_less_time(
    costs: SampleCosts | None, epochs: int | None, fills: bool
) -> None:
    assert fill_or_not(costs, epochs)[0] == fills
    if costs is not None and epochs is not None:
        assert fills == (costs.fill_seconds + (epochs - 1) * costs.kept_seconds < epochs * costs.crop_seconds)


def test_it_says_what_it_expects() -> None:
    assert fill_or_not(PHOTO, 90)[1] == (
        "pays after 1.9 epochs, the run has 90: 1.3 ms a sample and core in the first epoch and 150 µs then, "
        "750 µs without"
    )
    assert f"{ASSUMED_EPOCHS} are assumed" in fill_or_not(PHOTO, None)[1]
    assert fill_or_not(NEVER, 5)[1].startswith("never pays, the run has 5")


ROOM = 1000


@pytest.mark.parametrize(
    ("wanted", "memory", "disk", "on_disk", "epochs", "costs", "value"),
    [
        ("auto", ROOM, ROOM, 0, 9, None, "memory"),
        ("auto", ROOM - 1, ROOM, 0, 9, None, "disk"),
        ("auto", ROOM - 1, ROOM - 1, 0, 9, None, "off"),
        ("auto", ROOM, ROOM, 0, 1, None, "off"),
        ("auto", 0, ROOM, 500, 1, None, "disk"),  # what an earlier run left costs nothing
        ("auto", ROOM, ROOM, 500, 1, None, "off"),  # but memory has nothing of it
        ("auto", ROOM, 0, 0, 10, HUGE, "off"),
        ("auto", ROOM, 0, 0, 12, HUGE, "memory"),
        ("memory", 0, 0, 0, 1, None, "memory"),  # as much as there is room for
        ("disk", ROOM, 0, 0, 1, None, "disk"),
    ],
)
def test_the_tier_is_where_all_samples_fit_and_pay(
    wanted: str, memory: int, disk: int, on_disk: int, epochs: int, costs: SampleCosts | None, value: str
) -> None:
    chosen = choose_tier(wanted, epochs, ROOM, memory, disk, on_disk, costs)
    assert (chosen.value, chosen.wanted, chosen.epochs) == (value, wanted, epochs)
    assert bool(chosen.reason) == (wanted == "auto")  # what was asked for needs none
    if wanted == "auto" and chosen.fits is not None:
        assert chosen.tier_for("auto", epochs) == chosen.value  # a prediction of the same job agrees


def test_a_cache_that_never_pays_is_no_infinite_number() -> None:
    chosen = choose_tier("auto", 3, ROOM, ROOM, ROOM, 0, NEVER)
    assert (chosen.value, chosen.pays_after_epochs, chosen.crop_seconds) == ("off", None, NEVER.crop_seconds)


def test_costs_are_measured_only_where_they_decide() -> None:
    asked = [("auto", None), ("auto", 2), ("auto", 1), ("memory", 2), ("disk", None)]
    assert [needs_costs(*each) for each in asked] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("wanted", "pool", "scaled", "decoded", "said", "possible"),
    [
        ("off", "thread", False, False, "cache: off (data.cache)", True),
        ("auto", "thread", False, True, "cache: not needed, the pack is decoded", False),
        ("memory", "process", False, False, "cache: off, worker processes do not share one (data.worker_kind)", False),
        ("auto", "thread", True, False, "cache: off, view v has decode: scaled and a cache keeps whole, exact images",
         False),
    ],
)  # fmt: skip
def test_what_needs_no_look_at_a_sample(
    wanted: str, pool: str, scaled: bool, decoded: bool, said: str, possible: bool
) -> None:
    chosen = cache_without_looking(wanted, pool, 5, "v", scaled, decoded)
    assert chosen is not None
    assert (chosen.note, chosen.value, chosen.possible) == (said, "off", possible)
    assert chosen.tier_for("memory", 50) == ("memory" if possible else "off")


def test_a_scaled_view_refuses_what_cannot_be() -> None:
    assert cache_without_looking("auto", "thread", 5, "v", False, False) is None
    for wanted, decoded in (("memory", False), ("off", True)):
        with pytest.raises(ConfigError, match="decode: scaled"):
            cache_without_looking(wanted, "thread", 5, "v", True, decoded)


def test_a_stage_is_for_remote_data_that_fits_and_for_threads() -> None:
    local, off, processes = (
        stage_without_looking(*each)
        for each in (("auto", False, "thread"), ("off", True, "thread"), ("auto", True, "process"))
    )
    assert local is not None
    assert off is not None
    assert processes is not None
    assert (local.note, off.note) == (None, None)  # nothing to say
    assert processes.note == "stage: off, worker processes read the store every epoch (data.worker_kind)"
    assert stage_without_looking("auto", True, "thread") is None
    tight = choose_stage("auto", 1000, 0, 999, Path("/kept"))
    assert (tight.value, tight.note) == ("off", "stage: off, 1 kB do not fit the 999 B to spare on disk")
    there = choose_stage("auto", 1000, 1, 999, Path("/kept"))
    assert (there.value, there.note) == ("disk", "stage: 1 kB to /kept")
    assert there.failed(NoSpace("full")).note == "stage: off, full"


@pytest.mark.parametrize(
    "damage",
    [{"crop_seconds": {}}, {"kept_seconds": "\0"}, {"epochs": "3"}, {"pays_after_epochs": []}, {"possible": 1}],
)
def test_a_damaged_entry_is_none(damage: dict[str, Any]) -> None:
    whole = {"wanted": "auto", "value": "memory", "crop_seconds": 1.0, "fill_seconds": 2.0, "kept_seconds": 0.1}
    assert CacheChoice.from_dict(whole) is not None
    assert CacheChoice.from_dict({**whole, **damage}) is None


@pytest.mark.parametrize("seconds", [0.0, 5e-324, 1e308, -1.0])
def test_seconds_that_no_sample_takes_are_not_counted_on(seconds: float) -> None:
    whole = {"wanted": "auto", "value": "memory", "crop_seconds": 1.0, "fill_seconds": 2.0, "kept_seconds": seconds}
    choice = CacheChoice.from_dict(whole)
    assert choice is not None
    assert not choice.is_measured
