"""Figures of a classifier from what it said, by hand."""

import numpy as np

from flatout.trained.scores import SampleAnswers, calibration, confusion_matrix, per_class, top_confusions, worst_first

ANSWERS = SampleAnswers(
    ids=np.array([10, 11, 12, 13]),
    labels=np.array([0, 0, 1, 1]),
    predicted=np.array([0, 1, 1, 1]),
    confidence=np.array([0.9, 0.6, 0.8, 1.0]),
    of_label=np.array([0.9, 0.4, 0.8, 1.0]),
)
NAMES = ("cat", "dog", "fox")


def test_precision_and_recall_are_those_of_the_matrix() -> None:
    matrix = confusion_matrix(ANSWERS, 3)
    assert matrix.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    cat, dog, fox = per_class(matrix, NAMES)
    assert (cat["precision"], cat["recall"], cat["samples"]) == (1.0, 0.5, 2)
    assert (dog["precision"], dog["recall"]) == (2 / 3, 1.0)
    assert (fox["precision"], fox["recall"], fox["f1"]) == (None, None, None)
    assert top_confusions(matrix, NAMES, 5) == [{"right": "cat", "predicted": "dog", "samples": 1}]


def test_calibration_is_the_distance_between_confidence_and_being_right() -> None:
    found = calibration(ANSWERS)
    assert np.isclose(found["ece"], (0.1 + 0.6 + 0.2 + 0.0) / 4)
    assert sum(each["samples"] for each in found["bins"]) == 4


def test_the_worst_come_first_and_ties_by_sample() -> None:
    assert worst_first(ANSWERS, 2).tolist() == [1, 2]
