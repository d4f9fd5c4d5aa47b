"""What a recorded process says of itself."""

import signal

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from flatout.recording.activation import debugging_now, killed_rank, told_error


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


def test_a_rank_that_was_killed_is_named_and_those_that_torchrun_ended_are_not() -> None:
    def failed(exit_code: int) -> ProcessFailure:
        return ProcessFailure(local_rank=0, pid=1, exitcode=exit_code, error_file="")

    error = ChildFailedError("train.py", {0: failed(-signal.SIGTERM), 2: failed(-signal.SIGKILL)})
    assert told_error(error) == "rank 2 ended with SIGKILL"
    assert killed_rank(ChildFailedError("train.py", {0: failed(1)})) is None
    assert killed_rank(ValueError("a bad label")) is None
