"""Server-sent events: what changed since it was last sent, for as long as somebody listens."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

PUSH_SECONDS = 1.0
_NOTICE_SECONDS = 0.25  # until a stream sees that the server ends
_MOST_STREAMS = 64
Looked = tuple[dict[str, str], dict[str, Any]]
"""Pieces of a page by their name, and what else goes with them."""


class Streams:
    """Counts the pages that listen: each holds a thread now and then. All end when the server does."""

    def __init__(self) -> None:
        self._open = 0
        self._ending = False

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
        """Nothing more is sent."""
        self._ending = True

    async def go_on(self, request: Request, seconds: float = 0.0) -> bool:
        """After so long: whether somebody still listens."""
        until = time.monotonic() + seconds
        while not self._ending and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _NOTICE_SECONDS))
        return not (self._ending or await request.is_disconnected())

    async def follow_pieces(self, request: Request, look: Callable[[], Looked]) -> AsyncIterator[str]:
        """Whatever changed since it was last sent, piece by piece."""
        sent: dict[str, str] = {}
        going = await self.go_on(request)
        while going:
            fragments, facts = await run_in_threadpool(look)
            changed = {name: text for name, text in fragments.items() if sent.get(name) != text}  # mostly one object
            sent |= changed
            yield event_text("fragments", {"fragments": changed, **facts})
            going = await self.go_on(request, PUSH_SECONDS)


def event_text(name: str, values: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(values, allow_nan=False)}\n\n"
