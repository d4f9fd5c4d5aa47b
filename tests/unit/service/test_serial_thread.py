"""The thread that asks for a job: in order, with its errors, and keeping nothing."""

import gc
import weakref

import pytest

from flatout.service.client.requests import SerialThread


class Batch:
    pass


def test_it_does_what_it_is_given_and_keeps_nothing_of_it() -> None:
    thread: SerialThread[Batch] = SerialThread("thread of a test")
    wait = thread.submit(Batch)
    batch = wait()
    seen = weakref.ref(batch)
    assert thread.submit(Batch)() is not batch  # the first is over and done with
    del wait, batch
    gc.collect()
    assert seen() is None
    last = weakref.ref(thread.submit(Batch)())
    thread.close()
    assert last() is None
    assert not thread._thread.is_alive()


def test_while_it_waits_it_holds_no_result() -> None:
    """Else the buffers of an answer would be held until the next one is asked for."""
    thread: SerialThread[Batch] = SerialThread("thread of a test")
    seen = weakref.ref(thread.submit(Batch)())
    for _ in range(100):
        if seen() is None:
            break
        thread._thread.join(0.01)
    assert seen() is None
    thread.close()


def test_errors_are_raised_where_they_are_waited_for() -> None:
    thread: SerialThread[None] = SerialThread("thread of a test")

    def fail() -> None:
        raise ValueError("no")

    wait = thread.submit(fail)
    with pytest.raises(ValueError, match="no"):
        wait()
    thread.close()
