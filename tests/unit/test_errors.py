"""One tree of exceptions: what the command line answers, and that they survive the way from a worker."""

import pickle

import pytest

from flatout import errors
from flatout.errors import FlatoutError

TREE = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
WRONG_INPUT = {
    "BadFile",
    "DamagedArchive",
    "DataChanged",
    "UserError",
    "ConfigError",
    "DataError",
    "RunDirectoryError",
    "NoSpace",
}


def test_there_is_one_tree() -> None:
    assert all(issubclass(each, FlatoutError) for each in TREE)
    assert {each.__name__ for each in TREE} >= WRONG_INPUT | {
        "StorageError",
        "RunFailed",
        "WorkerFailed",
        "Interrupted",
    }


@pytest.mark.parametrize("kind", TREE)
def test_exit_codes(kind: type[FlatoutError]) -> None:
    expected = 130 if kind.__name__ == "Interrupted" else 2 if kind.__name__ in WRONG_INPUT else 1
    assert kind("x").exit_code == expected


@pytest.mark.parametrize("kind", TREE)
def test_an_error_of_a_worker_arrives_whole(kind: type[FlatoutError]) -> None:
    again = pickle.loads(pickle.dumps(kind("batch 3 was not ready; do this")))
    assert type(again) is kind
    assert str(again) == "batch 3 was not ready; do this"


def test_a_message_is_a_line_that_can_be_read_whatever_names_are_in_it() -> None:
    said = str(errors.DataError(f"the class {'[' * 100_000!r} stands twice; keep one of them"))
    assert len(said) < 2000
    assert said.startswith("the class '[[[")
    assert said.endswith("stands twice; keep one of them")
    assert str(errors.DataError("short")) == "short"
