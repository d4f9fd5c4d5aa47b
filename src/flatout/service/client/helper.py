"""A thread that does one thing after the other for somebody who has better things to do meanwhile."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")
_END_SECONDS = 1.0


class Helper(Generic[Result]):
    """What it does must not use torch: a thread that is in there when the interpreter ends takes the process down."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Result], Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """What is returned waits for it."""
        result: Future[Result] = Future()
        self._work.put((work, result))
        return result.result

    def end(self) -> None:
        """When nothing that it could wait for is left."""
        self._work.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            _carry_out(*task)
            del task  # while it waits for the next it keeps nothing of what it gave


def _carry_out(work: Callable[[], Result], result: Future[Result]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised where it is waited for
        result.set_exception(error)
