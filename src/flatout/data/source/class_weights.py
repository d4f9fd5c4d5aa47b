"""How much a sample of each class counts in the training loss."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flatout.data.source.dataset import Dataset
from flatout.errors import DataError

if TYPE_CHECKING:  # not for workers: see views.py
    from flatout.config.schema import DataConfig


def choose_class_weights(config: "DataConfig", dataset: Dataset) -> NDArray[np.float32] | None:
    """One for each class, or None. `balanced` is samples / (classes * samples of the class): 1 on average over the
    samples, so that the learning rate keeps its meaning."""
    wanted, classes = config.class_weights, dataset.classes
    if wanted is None:
        return None
    if wanted == "balanced":
        counts = np.bincount(dataset.train.labels, minlength=len(classes))
        return (len(dataset.train) / (len(classes) * np.maximum(counts, 1))).astype(np.float32)
    unknown = next((name for name in wanted if name not in classes), None)
    if unknown is not None:
        shown = ", ".join(map(repr, classes[:3])) + (", …" if len(classes) > 3 else "")
        raise DataError(
            f"data.class_weights names {unknown!r}, which is not among the {len(classes)} classes ({shown})"
        )
    if not any(wanted.get(name, 1.0) for name in classes):
        raise DataError("data.class_weights is 0 for every class, so nothing would be learnt; give one a weight")
    return np.array([wanted.get(name, 1.0) for name in classes], np.float32)
