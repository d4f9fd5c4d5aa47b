"""The pages and streams of the dashboard. Every request passes the guard; blocking work runs in threads."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flatout.commands.dashboard import Board
from flatout.commands.dashboard_pages import (
    cache_page,
    comparison_fragments,
    comparison_shell,
    plans_page,
    run_shell,
    runs_shell,
    static_file,
    what_if,
)
from flatout.errors import FlatoutError
from flatout.web.guard import HEADERS, Guard

PUSH_SECONDS = 1.0
_MOST_STREAMS = 64
_MOST_COMPARED = 12
_KINDS = {".css": "text/css", ".js": "text/javascript"}
Fragments = Callable[[], tuple[dict[str, str], dict[str, Any]]]


class GuardedApp:
    """Asks the guard first, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = self._answer(request)
        if answer is not None:
            answer.headers.update(HEADERS)
            await answer(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or the cookie in exchange for the token of the address."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        given = request.query_params.get("token")
        if given is not None and request.method == "GET":
            headers["authorization"] = f"Bearer {given}"
        refused = self._guard.refusal(request.method, headers, request.cookies)
        if refused is not None:
            return PlainTextResponse(refused[1] + "\n", refused[0])
        if given is None or request.method != "GET":
            return None
        if not self._guard.is_token(given):
            return PlainTextResponse("wrong token: `flatout dashboard` prints the address with the right one\n", 403)
        answer = RedirectResponse(request.url.path, 303)
        answer.set_cookie(self._guard.cookie, given, httponly=True, samesite="strict", path="/")
        return answer


def make_app(board: Board, guard: Guard) -> GuardedApp:
    """The whole dashboard as an ASGI application."""
    pages = Pages(board, guard)
    routes = [
        Route("/", pages.runs),
        Route("/run/{key:path}", pages.run),
        Route("/compare", pages.compare),
        Route("/cache", pages.cache),
        Route("/plans", pages.plans),
        Route("/static/{name}", pages.static),
        Route("/api/runs", pages.rows),
        Route("/api/keys", pages.config_keys),
        Route("/api/what-if/{key:path}", pages.what_if),
        Route("/api/stop/{key:path}", pages.stop, methods=["POST"]),
        Route("/events/runs", pages.runs_events),
        Route("/events/run/{key:path}", pages.run_events),
        Route("/events/compare", pages.compare_events),
    ]
    return GuardedApp(Starlette(routes=routes, exception_handlers={FlatoutError: _say}), guard)


async def _say(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 404)


class Pages:
    """Handlers, one for each address."""

    def __init__(self, board: Board, guard: Guard) -> None:
        self._board = board
        self._guard = guard
        self._streams = 0

    async def runs(self, request: Request) -> Response:
        return HTMLResponse(runs_shell())

    async def run(self, request: Request) -> Response:
        key = request.path_params["key"]
        glance = await run_in_threadpool(self._board.glance, key)
        may_act = self._guard.is_token(request.cookies.get(self._guard.cookie))
        return HTMLResponse(run_shell(glance, may_act))

    async def compare(self, request: Request) -> Response:
        return HTMLResponse(comparison_shell(self._compared(request), request.query_params.get("by", "step")))

    async def cache(self, request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(cache_page))

    async def plans(self, request: Request) -> Response:
        return HTMLResponse(await run_in_threadpool(plans_page, self._board))

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = static_file(name)
        if text is None:
            return PlainTextResponse("no such file\n", 404)
        return Response(text, media_type=_KINDS["." + name.rpartition(".")[2]])

    async def rows(self, request: Request) -> Response:
        columns = request.query_params.getlist("column")[:20]
        return JSONResponse(await run_in_threadpool(self._board.rows, columns))

    async def config_keys(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._board.config_keys))

    async def what_if(self, request: Request) -> Response:
        changes = [(name, value) for name, value in request.query_params.multi_items() if value]
        found = await run_in_threadpool(what_if, self._board, request.path_params["key"], changes)
        return HTMLResponse(found)

    async def stop(self, request: Request) -> Response:
        process = await run_in_threadpool(self._board.stop, request.path_params["key"])
        return JSONResponse({"asked": process})

    async def runs_events(self, request: Request) -> Response:
        columns = request.query_params.getlist("column")[:20]
        return self._stream(self._follow_rows(request, columns))

    async def run_events(self, request: Request) -> Response:
        key = request.path_params["key"]

        def look() -> tuple[dict[str, str], dict[str, Any]]:
            fragments, alarms = self._board.fragments(key)
            return dict(fragments), {"alarms": [vars(alarm) for alarm in alarms]}

        return self._stream(self._follow(request, look))

    async def compare_events(self, request: Request) -> Response:
        keys, by = self._compared(request), request.query_params.get("by", "step")
        return self._stream(self._follow(request, lambda: (comparison_fragments(self._board, keys, by), {})))

    @staticmethod
    def _compared(request: Request) -> list[str]:
        return request.query_params.getlist("run")[:_MOST_COMPARED]

    def _stream(self, events: AsyncIterator[str]) -> Response:
        if self._streams >= _MOST_STREAMS:
            return PlainTextResponse(f"{_MOST_STREAMS} pages are open already; close some\n", 503)
        return StreamingResponse(self._counted(events), media_type="text/event-stream")

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async for event in events:
                yield event
        finally:
            self._streams -= 1

    async def _follow(self, request: Request, look: Fragments) -> AsyncIterator[str]:
        """Whatever changed since it was last sent, piece by piece."""
        sent: dict[str, str] = {}
        while not await request.is_disconnected():
            fragments, facts = await run_in_threadpool(look)
            changed = {name: text for name, text in fragments.items() if sent.get(name) != _digest(text)}
            sent |= {name: _digest(text) for name, text in changed.items()}
            yield _event("fragments", {"fragments": changed, **facts})
            await asyncio.sleep(PUSH_SECONDS)

    async def _follow_rows(self, request: Request, columns: list[str]) -> AsyncIterator[str]:
        sent: dict[str, dict[str, Any]] = {}
        while not await request.is_disconnected():
            rows = {row["key"]: row for row in await run_in_threadpool(self._board.rows, columns)}
            changed = [row for key, row in rows.items() if sent.get(key) != row]
            yield _event("rows", {"changed": changed, "gone": [key for key in sent if key not in rows]})
            sent = rows
            await asyncio.sleep(PUSH_SECONDS)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _event(name: str, values: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(values, allow_nan=False)}\n\n"
