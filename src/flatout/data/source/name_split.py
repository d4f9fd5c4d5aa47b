"""Which samples are for validation: a pure function of each sample's own name, the same in every layout."""

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from flatout.data.source.layouts import canonical


def chosen_by_name(classes: Sequence[str], names: Sequence[str], share: float) -> NDArray[np.bool_]:
    """True for about `share` of the samples: those whose class and file name hash below it.

    Folders are left out of it, since layouts differ in them. Of a class that would be chosen whole, the sample with the
    highest hash stays in training.
    """
    places = np.array(
        [
            xxhash.xxh3_64_intdigest(canonical(label) + b"\0" + canonical(name.rsplit("/", 1)[-1]))
            for label, name in zip(classes, names, strict=True)
        ],
        np.uint64,
    )
    chosen: NDArray[np.bool_] = places.astype(np.float64) < share * 2.0**64
    by_class: dict[str, list[int]] = {}
    for number, label in enumerate(classes):
        by_class.setdefault(label, []).append(number)
    for members in by_class.values():
        if bool(chosen[members].all()):
            chosen[max(members, key=lambda number: (int(places[number]), number))] = False
    return chosen
