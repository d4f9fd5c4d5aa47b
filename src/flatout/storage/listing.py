"""List a store page by page; a page that fails is asked for again from the last name that came."""

import time
from collections.abc import Iterator
from typing import Any

from flatout.storage.answers import Trouble, explain, read_trouble
from flatout.storage.connection import Connection
from flatout.storage.locators import object_locator
from flatout.storage.protocol import Entry
from flatout.storage.retry import GiveUp, RequestHistory, RequestOutcome, next_attempt

_PAGE = 1000
"""Objects per request, S3's own limit."""


class _Position:
    """How far the listing came. Resuming by name needs names in order, which directory buckets do not give."""

    def __init__(self) -> None:
        self.last_name = ""
        self.ordered = True
        self.zero_names: set[str] = set()

    def move_to(self, name: str) -> None:
        self.ordered = self.ordered and name >= self.last_name
        self.last_name = name


def list_entries(connection: Connection, origin: str = "") -> Iterator[Entry]:
    """Every object under the prefix, which is at `origin`, without the zero-byte keys that stand for folders."""
    position = _Position()
    attempts, refreshed, started = 0, False, time.monotonic()
    while True:
        client, trouble = connection.client, None
        try:
            for page in _pages(connection, client, position.last_name):
                attempts, refreshed = 0, False
                yield from _without_folders(connection, client, page, position, origin)
                started = time.monotonic()
        except Exception as error:  # the consumer's own errors do not come through a yield
            trouble = read_trouble(type(error).__name__, str(error))
        if trouble is None:
            return
        attempts += 1
        elapsed_seconds = time.monotonic() - started
        asked = RequestHistory(attempts, elapsed_seconds, elapsed_seconds, attempts, refreshed)
        step = next_attempt(trouble.outcome, asked, connection.policy, connection.uniform)
        if isinstance(step, GiveUp) or not position.ordered:
            raise explain(trouble, connection.place, asked_seconds=elapsed_seconds)
        connection.book.add_retry()
        if step.refresh_credentials:
            refreshed = True
            connection.refresh(client)
        time.sleep(step.seconds)


def _pages(connection: Connection, client: Any, after: str) -> Iterator[list[dict[str, Any]]]:
    stream = iter(client.list(offset=after or None, chunk_size=_PAGE))
    while True:
        started = time.monotonic()
        try:
            page = next(stream, None)
        except Exception as error:
            connection.note(read_trouble(type(error).__name__, str(error)), time.monotonic() - started, 0)
            raise
        if page is None:
            return
        connection.note(None, time.monotonic() - started, 0)
        yield page


def _without_folders(
    connection: Connection, client: Any, page: list[dict[str, Any]], position: _Position, origin: str
) -> Iterator[Entry]:
    """obstore drops a key's last slash, so `a/` and `a` look alike; only the store knows which it is."""
    empty = [item["path"] for item in page if item["size"] == 0 and item["path"]]
    verdicts = connection.pool.map(lambda name: _is_folder(connection, client, name), empty)
    folders = {name for name, is_folder in zip(empty, verdicts, strict=True) if is_folder}
    for item in page:
        name, byte_count = item["path"], item["size"]
        repeated = byte_count == 0 and name in position.zero_names
        if byte_count == 0:
            position.zero_names.add(name)
        position.move_to(name)
        if name and not repeated and not (byte_count == 0 and name in folders):
            yield Entry(name, byte_count, object_locator(origin, name, item))


def _is_folder(connection: Connection, client: Any, name: str) -> bool:
    try:
        return connection.object_bytes(client, name) != 0  # then the zero-byte key is the other one, with the slash
    except FileNotFoundError:
        return True
    except Exception:
        return False  # keep it: an empty object is reported later, a lost one never


def first_trouble(client: Any) -> Trouble | None:
    """Try for one object: None if there is one, MISSING if there is none."""
    try:
        for page in client.list(chunk_size=1):
            if page:
                return None
    except Exception as error:
        return read_trouble(type(error).__name__, str(error))
    return Trouble(RequestOutcome.MISSING, "the listing is empty")
