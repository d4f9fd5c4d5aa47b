"""Coefficients from measurements: least squares in logarithms, pulled towards what is known of such kernels.

Beside the coefficients, every suite, model, architecture and card has an offset of its own that is pulled towards none:
what it was measured with, and what the roofline does not see. A card that is left out has no offset, only its specs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from contradictions import trusted
from rows import Row
from zoo import TEXT

from flatout.planning.speed import MOST_SHARE, NAMES, PRIORS, Columns, Floats, joined, step_seconds

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
_LINEAR = np.array([name in _EXPONENTS for name in NAMES])
_PRODUCTS = np.array([NAMES.index(f"{kind}_{bits}") for kind in ("conv", "matmul") for bits in ("16", "tf32", "32")])
SLOPE_OVER = 0.02
"""A derivative looks this far in logarithms: a share that is capped has a kink there, which a closer look does not see past."""
LEAST_STEP, LEAST_GAIN = 1e-3, 1e-3
"""Of any value, in logarithms; of the badness, which is some hundreds."""


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


def fit(rows: Sequence[Row], iterations: int = 40) -> Fit:
    """Gauss-Newton with numeric derivatives of the coefficients; offsets are linear. A step that makes it worse is halved."""
    problem = _problem(trusted(rows))
    state, now = problem.begin, problem.badness(problem.begin)
    for _ in range(iterations):
        step = problem.step(state)
        while (then := problem.badness(state + step)) > now and np.abs(step).max() > LEAST_STEP:
            step = step / 2
        if then > now - LEAST_GAIN:
            break
        state, now = state + step, then
    coefficients, offsets = state[: len(NAMES)], state[len(NAMES) :]
    return Fit(_packed(coefficients), dict(zip(problem.keys, offsets, strict=True)))


@dataclass(frozen=True)
class _Problem:
    """In logarithms (exponents: themselves): the coefficients, then the offsets of `keys`."""

    jobs: Columns
    measured: Floats
    noise: Floats
    keys: list[str]
    design: Floats
    target: Floats
    pull: Floats

    @property
    def begin(self) -> Floats:
        """Matrix products at the most they can reach: above that they have no slope, and whoever comes from below stops
        at a lesser minimum in front of it."""
        state = self.target.copy()
        state[: len(NAMES)][_PRODUCTS] = np.log(MOST_SHARE)
        return state

    def predicted(self, state: Floats) -> Floats:
        seconds = step_seconds(self.jobs, _packed(state[: len(NAMES)]))
        return np.log(seconds) + self.design @ state[len(NAMES) :]

    def badness(self, state: Floats) -> float:
        """Student's t of four degrees: a row far off says something of itself (a suite that read JPEGs, a container
        without TF32), not of the card."""
        off = (self.predicted(state) - self.measured) / self.noise
        return float(5 * np.log1p(off**2 / 4).sum() + (((state - self.target) / self.pull) ** 2).sum())

    def step(self, state: Floats) -> Floats:
        now = self.predicted(state)
        slopes = np.empty((len(now), len(NAMES)))
        for place in range(len(NAMES)):
            moved = state.copy()
            moved[place] += SLOPE_OVER
            slopes[:, place] = (self.predicted(moved) - now) / SLOPE_OVER
        whole = np.hstack([slopes, self.design])
        weights = 5 / (4 + ((now - self.measured) / self.noise) ** 2) / self.noise**2
        normal = (whole.T * weights) @ whole + np.diag(1 / self.pull**2)
        gradient = whole.T @ (weights * (self.measured - now)) + (self.target - state) / self.pull**2
        step: Floats = np.linalg.solve(normal, gradient)
        return step * min(1.0, 0.5 / max(1e-9, np.abs(step[: len(NAMES)]).max()))


def _problem(rows: Sequence[Row]) -> _Problem:
    keys = sorted({key for row in rows for key in offset_keys(row)})
    prior = np.array([PRIORS[name] for name in NAMES])
    return _Problem(
        jobs=joined([row.columns for row in rows]),
        measured=np.log([row.step_seconds for row in rows]),
        noise=np.array([NOISE_SD[row.suite.partition(" ")[0]] for row in rows]),
        keys=keys,
        design=np.array([[float(key in offset_keys(row)) for key in keys] for row in rows]),
        target=np.concatenate([np.where(_LINEAR, prior, np.log(prior)), np.zeros(len(keys))]),
        pull=np.array([_coefficient_sd(name) for name in NAMES] + [_offset_sd(key) for key in keys]),
    )


def _coefficient_sd(name: str) -> float:
    if name in _EXPONENTS:
        return PRIOR_SD["exponent"]
    kind = "bytes" if name in ("conv_bytes", "matmul_bytes", "elementwise_bytes") else name
    return PRIOR_SD.get(kind, PRIOR_SD["coefficient"])


def _offset_sd(key: str) -> float:
    kind, name, _ = key.split(":")
    return PRIOR_SD["text" if kind == "model" and "@" in name else kind]


def _packed(values: Floats) -> Floats:
    return np.where(_LINEAR, values, np.exp(np.where(_LINEAR, 0.0, values)))


def left_out(rows: Sequence[Row], group: Callable[[Row], str]) -> list[tuple[Row, float]]:
    """Each row with the seconds that a fit without its group predicts: its card (those that differ in memory or slot only
    count as different ones), its generation, its model or its suite."""
    found = []
    for name in sorted({group(row) for row in rows}):
        kept, left = [row for row in rows if group(row) != name], [row for row in rows if group(row) == name]
        found += list(zip(left, fit(kept).seconds(left), strict=True))
    return found


def leave_one_card_out(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    return left_out(rows, lambda row: row.card.name)
