"""Read one range of one object: ask, verify, ask again until it is whole or there is no point in asking."""

import hashlib
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from flatout.errors import StorageError
from flatout.storage.answers import Trouble, explain, read_trouble
from flatout.storage.connection import Connection
from flatout.storage.local import outside_error
from flatout.storage.protocol import Range
from flatout.storage.retry import GiveUp, RequestHistory, RequestOutcome, next_attempt

_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})"?')
_WHOLE_BYTES = 64 * 1024 * 1024
"""Largest object read whole for the sake of a range, where the server ignores ranges."""
_PART_BYTES = 256 * 1024


class _Troubled(Exception):
    def __init__(self, outcome: RequestOutcome, detail: str) -> None:
        super().__init__(detail)
        self.trouble = Trouble(outcome, detail)


@dataclass(slots=True)
class Read:
    """One range on its way, and what happened to it so far."""

    wanted: Range
    call_started: float
    abandoned: threading.Event
    first_started: float | None = None
    attempts: int = 0
    damaged: int = 0
    refreshed: bool = False
    whole: bool = False
    """The server ignores ranges: read the object whole and cut."""
    last_digest: str = ""

    def asked(self, connection: Connection) -> RequestHistory:
        elapsed_seconds = time.monotonic() - (self.first_started or self.call_started)
        silent_seconds = connection.silent_seconds(self.call_started)
        return RequestHistory(self.attempts, elapsed_seconds, silent_seconds, self.damaged, self.refreshed)


def read_range(connection: Connection, read: Read) -> bytes | StorageError:
    """The bytes, or why not. Ends by the policy's deadline, or sooner if the call is abandoned."""
    if read.wanted.length == 0:
        return b""
    while True:
        while not connection.gate.enter(seconds=1.0):
            if read.abandoned.is_set():
                return explain(Trouble(RequestOutcome.UNREACHABLE, "abandoned"), connection.place, read.wanted.name)
        client = connection.client
        answer = _attempt(connection, client, read)
        if isinstance(answer, bytes):
            return answer
        if answer.outcome is RequestOutcome.NOT_PARTIAL:
            read.whole = True
            connection.prefer_whole = connection.prefer_whole or read.wanted.start == 0
            continue
        asked = read.asked(connection)
        step = next_attempt(answer.outcome, asked, connection.policy, connection.uniform)
        if isinstance(step, GiveUp) or read.abandoned.wait(step.seconds):
            return _give_up(connection, client, read, answer, asked)
        if step.refresh_credentials:
            read.refreshed = True
            connection.refresh(client)
        connection.book.add_retry()


def _attempt(connection: Connection, client: Any, read: Read) -> bytes | Trouble:
    """One request, counted and timed; the caller has passed the gate."""
    started = time.monotonic()
    read.first_started = read.first_started or started
    read.attempts += 1
    data, trouble = b"", None
    try:
        data = _fetch(connection, client, read)
    except _Troubled as troubled:
        trouble = troubled.trouble
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        trouble = read_trouble(type(error).__name__, str(error))
    finally:
        ended = time.monotonic()
        pushed_back = trouble is not None and trouble.outcome in (RequestOutcome.THROTTLED, RequestOutcome.UNREACHABLE)
        connection.gate.leave(started, ended, len(data) if trouble is None else None, pushed_back)
    if trouble is not None and trouble.outcome is RequestOutcome.NO_CREDENTIALS and connection.last_success > 0:
        trouble = Trouble(RequestOutcome.UNREACHABLE, "the credentials' source does not answer")  # it did before
    connection.note(trouble, ended - started, len(data))
    if trouble is None:
        return data
    read.damaged = read.damaged + 1 if trouble.outcome is RequestOutcome.DAMAGED else 0
    return trouble


def _fetch(connection: Connection, client: Any, read: Read) -> bytes:
    result = _ask(connection, client, read)
    meta = result.meta
    object_bytes: int = meta["size"]
    if read.whole and object_bytes > _WHOLE_BYTES:
        detail = f"the server ignores ranges and the object has {object_bytes} bytes, limit {_WHOLE_BYTES}"
        raise _Troubled(RequestOutcome.REFUSED, detail)
    data = _body(connection, result)
    _check_length(Range(read.wanted.name) if read.whole else read.wanted, len(data), object_bytes)
    if connection.etag_is_md5 and len(data) == object_bytes and (etag := _MD5_ETAG.fullmatch(meta["e_tag"] or "")):
        _check_digest(connection, client, read, data, etag.group(1))
    return _cut(read.wanted, data) if read.whole else data


def _ask(connection: Connection, client: Any, read: Read) -> Any:
    wanted = read.wanted
    if read.whole:
        return client.get(wanted.name)
    if connection.prefer_whole and wanted.start == 0 and wanted.length is not None:
        result = client.get(wanted.name)
        if result.meta["size"] <= wanted.length:
            return result
    return client.get(wanted.name, options=_range_options(wanted))


def _body(connection: Connection, result: Any) -> bytes:
    """A long answer is read in parts, each of which renews the deadline for silence: a slow link is not refused."""
    start, end = result.range
    if end - start <= _PART_BYTES:
        short: bytes = result.bytes().to_bytes()
        return short
    parts = []
    for part in result.stream(min_chunk_size=_PART_BYTES):
        parts.append(part)
        connection.last_answer = time.monotonic()
    return b"".join(parts)


def _range_options(wanted: Range) -> dict[str, object] | None:
    if wanted.length is not None:
        return {"range": (wanted.start, wanted.start + wanted.length)}
    return {"range": {"offset": wanted.start}} if wanted.start else None


def _check_length(wanted: Range, got_bytes: int, object_bytes: int) -> None:
    end = object_bytes if wanted.length is None else wanted.start + wanted.length
    if end > object_bytes:
        raise _Troubled(RequestOutcome.BAD_RANGE, "")
    if got_bytes != end - wanted.start:
        raise _Troubled(RequestOutcome.DAMAGED, f"{got_bytes} bytes came, {end - wanted.start} were asked for")


def _check_digest(connection: Connection, client: Any, read: Read, data: bytes, etag: str) -> None:
    """An ETag of an object encrypted by KMS looks like an MD5 and is none, so equal readings outvote it: two whole ones
    and one in pieces, because a fault on the way may damage every answer at the same place."""
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if digest == etag:
        connection.etag_matches += 1
    elif digest != read.last_digest:
        read.last_digest = digest
        raise _Troubled(RequestOutcome.DAMAGED, f"MD5 {digest} differs from the ETag {etag}")
    elif not read.whole and _in_pieces(connection, client, read.wanted.name, len(data)) != data:
        raise _Troubled(RequestOutcome.DAMAGED, f"MD5 {digest} differs from the ETag {etag}, and pieces from the whole")
    elif connection.etag_matches == 0:
        connection.etag_is_md5 = False


def _in_pieces(connection: Connection, client: Any, name: str, object_bytes: int) -> bytes:
    cut, pieces = max(1, object_bytes // 3), []
    for start, end in ((0, cut), (cut, object_bytes)):
        if start < end:
            started = time.monotonic()
            pieces.append(_body(connection, client.get(name, options={"range": (start, end)})))
            connection.book.add_request(time.monotonic() - started, len(pieces[-1]), throttled=False)
    return b"".join(pieces)


def _cut(wanted: Range, data: bytes) -> bytes:
    end = len(data) if wanted.length is None else wanted.start + wanted.length
    if not wanted.start <= end <= len(data):
        raise _Troubled(RequestOutcome.BAD_RANGE, "")
    return data[wanted.start : end]


def _give_up(
    connection: Connection, client: Any, read: Read, trouble: Trouble, asked: RequestHistory
) -> bytes | StorageError:
    if trouble.outcome is RequestOutcome.BAD_RANGE:
        return _outside(connection, client, read.wanted)
    return explain(trouble, connection.place, read.wanted.name, asked.elapsed_seconds)


def _outside(connection: Connection, client: Any, wanted: Range) -> bytes | StorageError:
    """The range is not in the object; say how large the object is. An open range at its very end is empty."""
    try:
        object_bytes = connection.object_bytes(client, wanted.name)
    except Exception as error:
        return explain(read_trouble(type(error).__name__, str(error)), connection.place, wanted.name)
    if wanted.length is None and wanted.start == object_bytes:
        return b""
    return outside_error(f"{connection.place.url}: {wanted.name!r}", wanted, object_bytes)
