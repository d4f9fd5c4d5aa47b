"""Server-sent events: what changed since it was last sent, for as long as somebody listens."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from flatout.commands.dashboard import pause_seconds

_PUSH_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 10.0
_MOST_STREAMS = 64
Looked = tuple[dict[str, str], dict[str, Any]]
"""Pieces of a page by their name, and what else goes with them."""


class Streams:
    """Counts the pages that listen: each holds a thread now and then. All end when the server does."""

    def __init__(self) -> None:
        self._open = 0
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def answer(self, events: AsyncIterator[str]) -> Response:
        if self._open >= _MOST_STREAMS:
            return PlainTextResponse(f"{_MOST_STREAMS} pages are open already; close some\n", 503)
        return StreamingResponse(self._counted(events), media_type="text/event-stream")

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        self._open += 1
        try:
            async for event in events:
                yield event
        finally:
            self._open -= 1

    def end(self) -> None:
        """Nothing more is sent. A handler of a signal may call this, which does not wake the loop by itself."""
        if self._loop is None:
            self._ended.set()
        else:
            self._loop.call_soon_threadsafe(self._ended.set)

    async def wait_for_end(self, most_seconds: float | None = None) -> None:
        """For at most so long. Nothing runs meanwhile: looking several times a second whether it came costs more than
        looking at a run."""
        self._loop = asyncio.get_running_loop()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), most_seconds)

    async def go_on(self, request: Request, seconds: float = 0.0) -> bool:
        """After so long: whether somebody still listens."""
        if seconds:
            await self.wait_for_end(seconds)
        return not (self._ended.is_set() or await request.is_disconnected())

    async def follow_pieces(self, request: Request, look: Callable[[], Looked]) -> AsyncIterator[str]:
        """Whatever changed since it was last sent, piece by piece."""
        sent: dict[str, str] = {}
        going = await self.go_on(request)
        while going:
            first, began = not sent, time.process_time()
            fragments, facts = await run_in_threadpool(look)
            changed = {name: text for name, text in fragments.items() if sent.get(name) != text}  # mostly one object
            sent |= changed
            yield event_text("fragments", {"fragments": changed, **facts})
            going = await self.go_on(request, _PUSH_SECONDS if first else push_pause(began))


def push_pause(began: float) -> float:
    """Seconds until the next push, by what this process used since its clock (`time.process_time`) showed `began`:
    looking, writing and sending, of all pages that are open."""
    return min(_MOST_PAUSE_SECONDS, max(_PUSH_SECONDS, pause_seconds(time.process_time() - began)))


def event_text(name: str, values: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(values, allow_nan=False)}\n\n"
