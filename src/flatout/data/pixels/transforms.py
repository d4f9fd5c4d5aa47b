"""A function of the user's for each sample, after crop, resize and augmentation: `views.<name>.transform`."""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.views import View
from flatout.errors import ConfigError
from flatout.plugins import blamed, load, made


class Transform(Protocol):
    """Pixels in, pixels out; loaded by its name in every rank and worker, where several threads may call it at once.

    A function gets `transform_options` with every call; a class is made with them, once in each process.
    """

    def __call__(self, image: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
        """`image` is [3, height, width] and may be changed in place; the result has the same shape and type.

        `random` starts anew for each (seed, epoch, sample): what is drawn from it alone does not depend on workers.
        """
        ...


@lru_cache(maxsize=16)
def _loaded(key: str, name: str, source: str, options: str) -> Transform:
    found = load("transforms", name, key, source)
    with blamed(f"{key} is {name!r}"):
        return cast(Transform, made(found, json.loads(options) if options else {}))


def open_transform(view: View) -> Transform:
    """That of the view; other code than the view was made with is a ConfigError."""
    return _loaded(_key(view), view.transform, view.transform_source, view.transform_options)


def _key(view: View) -> str:
    return f"views.{view.name}.transform"


def try_transform(view: View) -> None:
    """On one made-up picture, where the view has one: what is wrong with it is found before anything is written."""
    if view.transform:
        side = view.side(0)
        noise = np.random.Generator(np.random.Philox(0)).integers(0, 256, (1, 3, side, side), np.uint8)
        apply_transform(view, noise, [0], np.zeros(1, np.int64), 0, 0)


def apply_transform(
    view: View, images: NDArray[np.uint8], slots: Iterable[int], ids: NDArray[np.int64], seed: int, epoch: int
) -> None:
    """Replace the images of these slots of a batch; an error in user code is a ConfigError with the user's line."""
    transform, name = open_transform(view), view.transform
    for slot in slots:
        sample = int(ids[slot])
        random = np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, sample]))
        with blamed(f"{_key(view)} is {name!r}, sample {sample}"):
            result = transform(images[slot], random)
        if not isinstance(result, np.ndarray) or (result.dtype, result.shape) != (images.dtype, images[slot].shape):
            what = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
            raise ConfigError(
                f"{_key(view)} is {name!r}, which returned {what}; it must return uint8 {images[slot].shape}"
            )
        images[slot] = result
