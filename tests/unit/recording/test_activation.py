"""What a recorded process says of itself."""

import torch

from flatout.recording.activation import debugging_now, told_error


def test_an_error_of_a_worker_is_told_by_its_first_line_and_its_last() -> None:
    passed_on = "Caught OSError in DataLoader worker process 1.\nOriginal Traceback (most recent call last):\n"
    passed_on += '  File "data.py", line 3, in __getitem__\nOSError: cannot identify image file\n'
    said = "OSError: Caught OSError in DataLoader worker process 1: OSError: cannot identify image file"
    assert told_error(OSError(passed_on)) == said
    assert told_error(ValueError("a bad\n label")) == "ValueError: a bad label"


def test_debugging_that_is_on_is_seen() -> None:
    assert debugging_now() == set()
    with torch.autograd.set_detect_anomaly(True):
        assert debugging_now() == {"detect_anomaly"}
