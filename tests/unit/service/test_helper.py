"""The thread that asks for a job: in order, with its errors, and keeping nothing."""

import gc
import weakref

import pytest

from flatout.service.client.helper import Helper


class Batch:
    pass


def test_it_does_what_it_is_given_and_keeps_nothing_of_it() -> None:
    helper: Helper[Batch] = Helper("helper of a test")
    wait = helper.start(Batch)
    batch = wait()
    seen = weakref.ref(batch)
    assert helper.start(Batch)() is not batch  # the first is over and done with
    del wait, batch
    gc.collect()
    assert seen() is None
    last = weakref.ref(helper.start(Batch)())
    helper.end()
    assert last() is None
    assert not helper._thread.is_alive()


def test_while_it_waits_it_holds_no_result() -> None:
    """Else the buffers of a handful would be held until the next one is asked for."""
    helper: Helper[Batch] = Helper("helper of a test")
    seen = weakref.ref(helper.start(Batch)())
    for _ in range(100):
        if seen() is None:
            break
        helper._thread.join(0.01)
    assert seen() is None
    helper.end()


def test_errors_are_raised_where_they_are_waited_for() -> None:
    helper: Helper[None] = Helper("helper of a test")

    def fail() -> None:
        raise ValueError("no")

    wait = helper.start(fail)
    with pytest.raises(ValueError, match="no"):
        wait()
    helper.end()
