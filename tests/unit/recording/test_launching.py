"""The environment of a recorded command, its rank, and how its end is told."""

import os
import signal
from pathlib import Path

import pytest

from flatout.recording.files import FOLDER, Tail, claim_rank
from flatout.recording.launching import describe_end, recorded_environment
from flatout.recording.loaders import LoaderUse, shape_at_hand


def test_the_recorder_comes_first_and_nothing_of_ours_leaks(tmp_path: Path) -> None:
    now = {"PYTHONPATH": "/mine", "GOMP_SPINCOUNT": "1000", "HOME": "/me"}
    made = recorded_environment(tmp_path, now, {"HOME": "/me"})
    first, rest = made["PYTHONPATH"].split(os.pathsep)
    assert ((Path(first) / "sitecustomize.py").is_file(), rest) == (True, "/mine")
    assert "GOMP_SPINCOUNT" not in made
    assert recorded_environment(tmp_path, now, now)["GOMP_SPINCOUNT"] == "1000"


@pytest.mark.parametrize(
    ("code", "told", "doing", "status", "cause"),
    [
        (0, None, {}, "completed", None),
        (3, None, {}, "failed", "the command ended with exit code 3 after step 9"),
        (1, "ValueError: x (t.py:3)", {}, "failed", "ValueError: x (t.py:3); exit code 1 after step 9"),
        (-signal.SIGINT, None, {}, "stopped", "interrupted after step 9"),
        (
            -signal.SIGKILL,
            None,
            {"part": "data_wait", "where": "t.py:8", "seconds": 312.0},
            "failed",
            "the command ended with signal SIGKILL after step 9; last seen in data wait at t.py:8, for 312 s",
        ),
    ],
)
def test_the_end_is_told_with_its_cause(
    code: int, told: str | None, doing: dict[str, object], status: str, cause: str | None
) -> None:
    assert describe_end(code, told, doing, 9) == (status, cause)


def test_one_process_is_rank_0_and_the_next_one_its_second_attempt(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    assert claim_rank(tmp_path, None) == (0, 1)
    claim = tmp_path / FOLDER / "rank0-1.claim"
    claim.write_text("1\n")  # a process that is alive, and not this one
    assert claim_rank(tmp_path, None) is None
    claim.write_text("999999999\n")
    assert claim_rank(tmp_path, None) == (0, 2)
    assert (claim_rank(tmp_path, 3), claim_rank(tmp_path, 3)) == ((3, 1), (3, 2))


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"b"')
    assert tail.read() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"b": 2}\nnonsense\n[3]\n')
    assert tail.read() == [{"b": 2}]


def test_samples_are_found_in_whatever_a_batch_is() -> None:
    class Shaped:
        shape = (5, 2)

    assert shape_at_hand([{"ids": Shaped()}, 1])[0] == 5
    assert shape_at_hand({"a": {"b": (Shaped(),)}})[0] == 5
    assert (shape_at_hand("text"), shape_at_hand(None), shape_at_hand([])) == ((), (), ())


def test_a_loader_whose_batches_go_by_feeds_validation() -> None:
    use = LoaderUse(0, {})
    assert not use.feeds_validation(grad_enabled=True)
    assert use.feeds_validation(grad_enabled=False)
    use.take(4, step=-1, validating=True)
    assert use.feeds_validation(grad_enabled=True)
    use.trained = True
    assert not use.feeds_validation(grad_enabled=True)
