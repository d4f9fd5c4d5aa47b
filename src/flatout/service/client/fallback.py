"""The loader of the job's own, which makes batches while there is no service."""

from collections import deque
from collections.abc import Callable

from flatout.data.batch import Prepared
from flatout.data.loading.loader import Loader
from flatout.data.loading.pools import Key
from flatout.service.client.batches import StreamOrder


class LocalFallback:
    """Opened when it is first needed. Knows what the loader has submitted, so that it can start in the middle.

    Keys are those of the loader; `order` says which batches of the stream they are.
    """

    def __init__(self, open_local: Callable[[], Loader], order: StreamOrder) -> None:
        self.is_active = False
        self._order = order
        self._open_local = open_local
        self._loader: Loader | None = None
        self._submitted: deque[Key] = deque()

    def submit(self, key: Key) -> None:
        self._submitted.append(key)
        if self.is_active and self._loader is not None:
            self._loader.pool.submit(self._order.stream_key(key))

    def wait(self, key: Key, deadline_seconds: float) -> Prepared:
        """Makes the batch, after everything that was submitted is given to the local pool."""
        if self._loader is None:
            self._loader = self._open_local()
        if not self.is_active:
            self.is_active = True
            for each in self._submitted:
                self._loader.pool.submit(self._order.stream_key(each))
        return self._loader.pool.wait(self._order.stream_key(key), deadline_seconds)

    def note_taken(self, key: Key) -> None:
        """The batch was handed over, whoever made it."""
        if self._submitted and self._submitted[0] == key:
            self._submitted.popleft()

    def ready(self) -> int:
        return self._loader.pool.ready() if self._loader is not None else 0

    def stop(self) -> None:
        """The service is back."""
        if self.is_active and self._loader is not None:
            self._loader.pool.forget()
        self.is_active = False

    def forget(self) -> None:
        self._submitted.clear()
        if self._loader is not None:
            self._loader.pool.forget()

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def after_fork(self) -> None:
        """Threads and processes of the loader are the parent's."""
        self._loader, self.is_active = None, False
