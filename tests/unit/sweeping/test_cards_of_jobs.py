"""Each job of a sweep has its own cards."""

import pytest

from flatout.commands.ray_jobs import _jobs_on
from flatout.config.schema import Config
from flatout.decisions.compute import cards_of_run
from flatout.sweeping.cards import places

FOUR = ["a", "b", "c", "d"]


def config(device: str = "cuda", devices: object = 1) -> Config:
    return Config.model_validate({"name": "x", "device": device, "parallel": {"devices": devices}})


@pytest.mark.parametrize(
    ("devices", "jobs", "expected"),
    [
        (1, None, [("a",), ("b",), ("c",), ("d",)]),
        (2, None, [("a", "b"), ("c", "d")]),
        (3, None, [("a", "b", "c")]),
        ("all", None, [("a", "b", "c", "d")]),
        (1, 2, [("a",), ("b",)]),
        (2, 3, [("a", "b"), ("c", "d"), ("a", "b")]),
        (5, None, []),
    ],
)
def test_sets_of_cards(devices: object, jobs: int | None, expected: list[tuple[str, ...]]) -> None:
    base = config(devices=devices)
    assert places(FOUR, lambda count: cards_of_run(base, count), jobs) == expected


@pytest.mark.parametrize(("device", "cards", "taken"), [("cpu", 4, 0), ("auto", 4, 1), ("auto", 0, 0), ("cuda", 0, 1)])
def test_who_takes_a_card(device: str, cards: int, taken: int) -> None:
    assert cards_of_run(config(device), cards) == taken


@pytest.mark.parametrize(
    ("resources", "cores", "cards", "jobs"),
    [
        ({"CPU": 8.0}, 2, 0, 4),
        ({"CPU": 8.0, "GPU": 4.0}, 1, 2, 2),
        ({"CPU": 1.0, "GPU": 4.0}, 1, 1, 1),
        ({"CPU": 8.0}, 1, 1, 0),
        ({}, 1, 0, 0),
    ],
)
def test_runs_that_fit_on_a_machine(resources: dict[str, float], cores: int, cards: int, jobs: int) -> None:
    assert _jobs_on(resources, cores, cards) == jobs
