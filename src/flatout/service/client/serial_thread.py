"""A thread that runs functions one after the other, so that a job need not wait for them."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")
_END_SECONDS = 1.0


class SerialThread(Generic[Result]):
    """Functions given to it must not use torch: a daemon thread inside torch at interpreter exit aborts the process.

    Unlike ThreadPoolExecutor it is a daemon, and keeps no reference to a result while it waits for the next function.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Result], Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """A function that waits for the result, and raises what `work` raised."""
        result: Future[Result] = Future()
        self._work.put((work, result))
        return result.result

    def close(self) -> None:
        """Waits a moment. Close first what the running function may be waiting for, such as a connection."""
        self._work.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            _carry_out(*task)
            del task  # else it would keep the result until the next function


def _carry_out(work: Callable[[], Result], result: Future[Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised where it is waited for
        result.set_exception(error)
