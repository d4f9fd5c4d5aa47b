"""The random part of a batch, drawn for all its samples at once and keyed by (seed, epoch, sample id)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.decode import native
from flatout.data.pixels.views import View
from flatout.sampling import uniforms

TRIES = 10  # of a random resized crop, before the centre is taken
KIND, FRACTION, OFFSET_X, OFFSET_Y, SHIFT_X, SHIFT_Y = range(6)
WIDTHS, HEIGHTS, FLIP = slice(6, 6 + TRIES), slice(6 + TRIES, 6 + 2 * TRIES), 6 + 2 * TRIES
COLUMNS = FLIP + 1  # the compiled decoder reads these rows as they are
_GEOMETRY, _COLOUR, _TRIVIAL, _ERASE, _MIX = range(5)  # streams of the generator
_BETA_TRIES = 24


@dataclass(frozen=True)
class Mix:
    """Which neighbour each sample is mixed with, and how; applied on the device after normalisation."""

    partner: NDArray[np.int64]
    keep: NDArray[np.float32]  # share of the sample's own pixels and label
    box: NDArray[np.int64]  # cutmix rectangle x0, y0, x1, y1; empty (zeros) means mixup


@dataclass(frozen=True)
class Draws:
    """One row per sample; parts that the view does not use are None."""

    geometry: NDArray[np.float64]
    colour: NDArray[np.float64] | None
    trivial: NDArray[np.float64] | None
    erase: NDArray[np.float64] | None

    @property
    def recolours(self) -> bool:
        return self.colour is not None or self.trivial is not None or self.erase is not None


def draw(view: View, seed: int, epoch: int, ids: NDArray[np.int64]) -> Draws:
    """Everything random about these samples in this epoch."""

    def numbers(stream: int, count: int) -> NDArray[np.float64]:
        return fast_uniforms(seed, epoch, ids, stream, count)

    geometry = _geometry(view, len(ids), numbers(_GEOMETRY, 3 + 2 * TRIES if view.crop == "random-resized" else 3))
    if view.alternate_flip:
        geometry[:, FLIP] = alternate_flips(seed, epoch, ids)
    return Draws(
        geometry=geometry,
        colour=_colour(view, numbers(_COLOUR, 3)) if any(view.colour_jitter) else None,
        trivial=numbers(_TRIVIAL, 3) if view.trivial_augment else None,
        erase=_erase(view, numbers(_ERASE, 5)) if view.erase else None,
    )


def alternate_flips(seed: int, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sample is flipped: as by chance in epoch 0, and the other way round in every epoch after it.

    In any two epochs that follow each other a sample is seen once each way (Jordan, 2024, "94% on CIFAR-10 in 3.29
    seconds on a single GPU").
    """
    first: NDArray[np.bool_] = fast_uniforms(seed, 0, ids, _GEOMETRY, 1)[:, 0] < 0.5
    return first ^ bool(epoch % 2)


def fast_uniforms(seed: int, epoch: int, ids: NDArray[np.int64], stream: int, count: int) -> NDArray[np.float64]:
    """The same numbers as `uniforms`."""
    if native is None:
        return uniforms(seed, epoch, ids, stream, count)
    out = np.empty((len(ids), count))
    native.uniforms(seed, epoch & 0xFFFFFFFF, np.ascontiguousarray(ids), stream, out)
    return out


def _geometry(view: View, count: int, u: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = np.zeros((count, COLUMNS))
    rows[:, FRACTION] = view.fraction
    rows[:, FLIP] = u[:, 0] < view.flip
    if view.crop == "random-resized":
        rows[:, KIND] = 1
        rows[:, OFFSET_X : OFFSET_Y + 1] = u[:, 1:3]
        area = view.scale[0] + u[:, 3 : 3 + TRIES] * (view.scale[1] - view.scale[0])
        low, high = np.log(view.ratio)
        ratio = np.exp(low + u[:, 3 + TRIES :] * (high - low))
        # rounded, so that a last-bit difference between two machines' exp() cannot move a crop
        rows[:, WIDTHS] = np.round(np.sqrt(area * ratio), 7)
        rows[:, HEIGHTS] = np.round(np.sqrt(area / ratio), 7)
    elif view.crop == "pad":
        rows[:, SHIFT_X : SHIFT_Y + 1] = np.floor(u[:, 1:3] * (2 * view.pad + 1)) - view.pad
    return rows


def _colour(view: View, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factors of brightness, contrast, saturation around 1."""
    factors: NDArray[np.float64] = np.maximum(0.0, 1 + (2 * u - 1) * np.array(view.colour_jitter))
    return factors


def _erase(view: View, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rectangle as shares x, y, width, height of the side; width 0 where nothing is erased."""
    area = 0.02 + u[:, 1] * 0.31
    ratio = np.exp(np.log(0.3) + u[:, 2] * np.log(11.0))
    width, height = (np.minimum(np.round(np.sqrt(share), 7), 0.999) for share in (area * ratio, area / ratio))
    width = np.where(u[:, 0] < view.erase, width, 0.0)
    return np.stack([u[:, 3] * (1 - width), u[:, 4] * (1 - height), width, height], axis=1)


def draw_mix(view: View, seed: int, epoch: int, ids: NDArray[np.int64], side: int) -> Mix | None:
    """Mix neighbours (2i, 2i+1) of the batch: random pairs, since the order is random, and whole on every rank."""
    if not (view.mixup or view.cutmix) or len(ids) == 0:
        return None
    slots = np.arange(len(ids))
    partner = slots ^ 1
    partner = np.where(partner < len(ids), partner, slots)
    u = fast_uniforms(seed, epoch, ids[slots & ~1], _MIX, 3 + 2 * _BETA_TRIES)  # both of a pair draw the same
    cut = np.full(len(ids), bool(view.cutmix)) if not (view.mixup and view.cutmix) else u[:, 0] < 0.5
    keep = np.where(cut, _beta(view.cutmix, u[:, 3:]), _beta(view.mixup, u[:, 3:]))
    box, area = _cut_box(u[:, 1:3], keep, side)
    keep = np.where(cut, 1 - area / side**2, keep)
    alone = partner == slots
    return Mix(partner, np.where(alone, 1.0, keep).astype(np.float32), np.where((cut & ~alone)[:, None], box, 0))


def _beta(alpha: float, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Beta(alpha, alpha) for 0 < alpha <= 1 by Joehnk's method: the first accepted of a fixed number of tries."""
    if alpha == 0:
        return np.ones(len(u))
    left, right = u[:, :_BETA_TRIES] ** (1 / alpha), u[:, _BETA_TRIES:] ** (1 / alpha)
    total = left + right
    accepted = (total <= 1) & (total > 0)
    first = np.argmax(accepted, axis=1)
    rows = np.arange(len(u))
    value = np.round(left[rows, first] / np.maximum(total[rows, first], 1e-300), 7)
    return np.where(accepted[rows, first], value, 0.5)


def _cut_box(
    u: NDArray[np.float64], keep: NDArray[np.float64], side: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    half = np.sqrt(1 - keep) * side / 2
    centre = np.floor(u * side)
    low = np.clip(np.rint(centre - half[:, None]), 0, side).astype(np.int64)
    high = np.clip(np.rint(centre + half[:, None]), 0, side).astype(np.int64)
    return np.concatenate([low, high], axis=1), (high - low).prod(axis=1)
