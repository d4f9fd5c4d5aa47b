"""The fit to published speeds: where it ends."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flatout.planning.cards import find_card
from flatout.planning.speed import NAMES, PRIORS, columns_of, step_seconds
from flatout.planning.work import Kernels, Line, TracedWork

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "planning"))

from fitting import fit
from rows import Row

WORK = TracedWork(
    (Kernels("conv", "forward", 256, 10, Line(0, 1e10), Line(0, 1e8), True),), {}, 1, 4.0, 1 / 3, Line(0, 0)
)
PUBLISHED = {"RTX A4500": 100.0, "RTX A5000": 118.0, "RTX A6000": 150.0, "RTX 3090": 140.0}


def row(card: str, speed: float, model: str = "gnmt", **other: Any) -> Row:
    columns = columns_of(WORK, 64, find_card(card), "tf32", True)
    plain = Row(find_card(card), model, "tf32", True, 64, speed, "lambda ngc20.01-21.07", "", columns)
    return replace(plain, **other)


def near_the_peak() -> list[Row]:
    """Matrix products at 0.7 of each card's peak, a tenth more or less."""
    kernels = (
        Kernels("matmul", "forward", 4096, 10, Line(0, 1e10), Line(0, 1e6), True),
        Kernels("elementwise", "forward", 0, 20, Line(0, 0), Line(0, 1e7), True),
    )
    random = np.random.default_rng(4)
    found = []
    for name in [*PUBLISHED, "A100 40GB SXM4", "H100 PCIe", "B200"]:
        card = find_card(name)
        columns = columns_of(replace(WORK, kernels=kernels), 64, card, "tf32", True)
        for model in ("one", "two"):
            speed = 7 * card.tf32_tflops * float(np.exp(random.normal(0, 0.1)))
            found.append(row(name, speed, model, columns=columns))
    return found


def test_the_fit_ends_where_more_steps_change_nothing():
    """It went to and fro between two states: what a card was told hung on the number of steps."""
    rows = near_the_peak()
    told = [fit(rows, iterations=steps).seconds(rows) for steps in (40, 41, 42)]
    np.testing.assert_allclose(told[1:], [told[0], told[0]], rtol=1e-3)


def test_the_fit_finds_speeds_that_the_model_itself_made():
    made = dict(PRIORS, conv_tf32=0.8 * PRIORS["conv_tf32"])
    coefficients = np.array([made[name] for name in NAMES])
    rows = [
        row(card, 64 / float(step_seconds(row(card, 1).columns, coefficients)[0]), model)
        for card in PUBLISHED
        for model in ("gnmt", "bert")
    ]
    np.testing.assert_allclose(fit(rows).seconds(rows), [each.step_seconds for each in rows], rtol=0.05)
