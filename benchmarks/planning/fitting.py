"""Coefficients from measurements: least squares in logarithms, pulled towards what is known of such kernels.

Beside the coefficients, every suite, model, architecture and card has an offset of its own that is pulled towards none:
what it was measured with, and what the roofline does not see. A card that is left out has no offset, only its specs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from rows import Row
from zoo import TEXT

from flatout.planning.speed import NAMES, PRIORS, Floats, joined, step_seconds

PRIOR_SD = {
    "coefficient": 0.25, "bytes": 0.12, "exponent": 0.06, "softness": 0.1, "suite": 0.25, "model": 0.15, "text": 0.5, "era": 0.15,
    "architecture": 0.08, "card": 0.06,
}  # fmt: skip
"""How far, in logarithms (exponents: themselves), each may go from where it is pulled to. The text models are traced from
descriptions, and each suite has its own, so that their offsets are wide; image models are what they are."""
NOISE_SD = {"lambda": 0.07, "timm": 0.1, "nvidia": 0.25, "batch12": 0.6, "zeus": 0.4, "seed": 0.15}
"""Of one row's logarithm: one suite that measured many cards alike says more of cards than others that measured one. Rows
of twelve samples and whole epochs on hosts of 2019 say little of a card."""
_EXPONENTS = ("ridge_power", "watt_power")


@dataclass(frozen=True)
class Fit:
    coefficients: Floats
    offsets: dict[str, float] = field(default_factory=dict)
    """By `suite:…`, `model:…`, `architecture:…`, `card:…`, in logarithms of seconds."""

    def seconds(self, rows: Sequence[Row]) -> Floats:
        plain = step_seconds(joined([row.columns for row in rows]), self.coefficients)
        return plain * np.exp([sum(self.offsets.get(key, 0.0) for key in offset_keys(row)) for row in rows])


def offset_keys(row: Row) -> tuple[str, ...]:
    group = row.arithmetic
    model = f"{row.model}@{row.suite.partition(' ')[0]}" if row.model in TEXT else row.model
    keys = (
        f"suite:{row.suite}:{row.precision}",
        f"model:{model}:{group}",
        f"architecture:{row.card.architecture}:{group}",
        f"card:{row.card.name}:{group}",
    )
    return (*keys, f"era:{row.model}@{row.era}:{group}") if row.model in TEXT else keys


def fit(rows: Sequence[Row], start: Fit | None = None, iterations: int = 12) -> Fit:
    """Gauss-Newton with numeric derivatives of the coefficients; offsets are linear."""
    jobs = joined([row.columns for row in rows])
    measured = np.log([row.step_seconds for row in rows])
    noise = np.array([NOISE_SD[row.suite.partition(" ")[0]] for row in rows])
    keys = sorted({key for row in rows for key in offset_keys(row)})
    design = np.array([[float(key in offset_keys(row)) for key in keys] for row in rows])
    linear = np.array([name in _EXPONENTS for name in NAMES])
    prior = _unpacked(np.array([PRIORS[name] for name in NAMES]), linear)
    pull = np.array([_coefficient_sd(name) for name in NAMES] + [_offset_sd(key) for key in keys])
    begin = start.coefficients if start is not None else np.array([PRIORS[name] for name in NAMES])
    state = np.concatenate([_unpacked(begin, linear), [start.offsets.get(k, 0.0) if start else 0.0 for k in keys]])
    target = np.concatenate([prior, np.zeros(len(keys))])

    def predicted(values: Floats) -> Floats:
        return np.log(step_seconds(jobs, _packed(values[: len(NAMES)], linear))) + design @ values[len(NAMES) :]

    for _ in range(iterations):
        now = predicted(state)
        slopes = np.empty((len(rows), len(NAMES)))
        for place in range(len(NAMES)):
            moved = state.copy()
            moved[place] += 1e-4
            slopes[:, place] = (predicted(moved) - now) / 1e-4
        whole = np.hstack([slopes, design])
        weights = _weights((now - measured) / noise) / noise**2
        normal = (whole.T * weights) @ whole + np.diag(1 / pull**2)
        gradient = whole.T @ (weights * (measured - now)) + (target - state) / pull**2
        step = np.linalg.solve(normal, gradient)
        state = state + step * min(1.0, 0.5 / max(1e-9, np.abs(step[: len(NAMES)]).max()))
        if np.abs(step).max() < 1e-3:
            break
    return Fit(_packed(state[: len(NAMES)], linear), dict(zip(keys, state[len(NAMES) :], strict=True)))


def _coefficient_sd(name: str) -> float:
    if name in _EXPONENTS:
        return PRIOR_SD["exponent"]
    kind = "bytes" if name in ("conv_bytes", "matmul_bytes", "elementwise_bytes") else name
    return PRIOR_SD.get(kind, PRIOR_SD["coefficient"])


def _offset_sd(key: str) -> float:
    kind, name, _ = key.split(":")
    return PRIOR_SD["text" if kind == "model" and "@" in name else kind]


def _weights(residuals: Floats) -> Floats:
    """Student's t of four degrees: a row far off says something of itself (a suite that read JPEGs, a container without
    TF32), not of the card."""
    return 5 / (4 + residuals**2)


def _unpacked(coefficients: Floats, linear: np.ndarray) -> Floats:
    return np.where(linear, coefficients, np.log(np.maximum(coefficients, 1e-9)))


def _packed(values: Floats, linear: np.ndarray) -> Floats:
    return np.where(linear, values, np.exp(np.where(linear, 0.0, values)))


def left_out(rows: Sequence[Row], group: Callable[[Row], str]) -> list[tuple[Row, float]]:
    """Each row with the seconds that a fit without its group predicts: its card (those that differ in memory or slot only
    count as different ones), its generation, its model or its suite."""
    whole = fit(rows)
    found = []
    for name in sorted({group(row) for row in rows}):
        kept, left = [row for row in rows if group(row) != name], [row for row in rows if group(row) == name]
        found += list(zip(left, fit(kept, whole, iterations=6).seconds(left), strict=True))
    return found


def leave_one_card_out(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    return left_out(rows, lambda row: row.card.name)
