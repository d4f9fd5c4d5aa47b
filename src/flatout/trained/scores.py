"""How good a classifier is, class by class, from what it said of every sample: plain numpy, no model in here."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # of confidence, as most papers on calibration have


@dataclass(frozen=True)
class SampleAnswers:
    """What a model said of each sample: arrays of one length."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    confidence: NDArray[np.float64]  # probability of what was predicted
    of_label: NDArray[np.float64]  # probability of the right class

    def __len__(self) -> int:
        return len(self.ids)


def confusion_matrix(answers: SampleAnswers, classes: int) -> NDArray[np.int64]:
    """[right class, predicted class] -> samples."""
    places = answers.labels * classes + answers.predicted
    return np.bincount(places, minlength=classes * classes).reshape(classes, classes)


def per_class(matrix: NDArray[np.int64], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Precision, recall and F1 of each class; None where nothing was predicted, or there is no sample of it."""
    right, of_class, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    return [
        {
            "class": name,
            "samples": int(of_class[k]),
            "precision": _share(right[k], said[k]),
            "recall": _share(right[k], of_class[k]),
            "f1": _share(2 * right[k], said[k] + of_class[k]),
        }
        for k, name in enumerate(names)
    ]


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None


def calibration(answers: SampleAnswers) -> dict[str, Any]:
    """Expected calibration error over bins of equal width, and the bins: a model that says 0.8 should be right in 80 %.

    The error is the mean over samples of |share that is right - mean confidence| of their bin.
    """
    right = answers.predicted == answers.labels
    which = np.clip(np.ceil(answers.confidence * BINS).astype(int) - 1, 0, BINS - 1)
    bins, error = [], 0.0
    for number in range(BINS):
        inside = which == number
        if count := int(inside.sum()):
            accuracy, confidence = float(right[inside].mean()), float(answers.confidence[inside].mean())
            bins.append({"up_to": (number + 1) / BINS, "samples": count, "confidence": confidence, "right": accuracy})
            error += count / len(answers) * abs(accuracy - confidence)
    return {"ece": error if len(answers) else None, "bins": bins}


def worst_first(answers: SampleAnswers, count: int) -> NDArray[np.int64]:
    """Positions of the samples whose right class got the least probability; ties by sample."""
    return np.lexsort((answers.ids, answers.of_label))[:count]


def top_confusions(matrix: NDArray[np.int64], names: tuple[str, ...], count: int) -> list[dict[str, Any]]:
    """Pairs of classes that are taken for each other, the most frequent first."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    found = [(int(place // len(names)), int(place % len(names))) for place in order]
    return [
        {"right": names[a], "predicted": names[b], "samples": int(wrong[a, b])} for a, b in found if wrong[a, b] > 0
    ]
