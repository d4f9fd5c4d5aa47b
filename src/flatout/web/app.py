"""The pages and streams of the dashboard. Every request passes the guard; blocking work runs in threads."""

import time
from collections.abc import AsyncIterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flatout.commands.dashboard import Board, Row, runs_shell, static_file
from flatout.errors import FlatoutError
from flatout.web.guard import Guard
from flatout.web.streams import Looked, Streams, event_text, push_pause

if TYPE_CHECKING:
    from flatout.commands.dashboard_run import WatchedRuns

_FIRST_SECONDS = 0.05  # of reading before the first rows of a long list are sent
_PLAIN = ("suites", "plans", "cache")  # pages of one piece
_MOST_COMPARED = 12
_KINDS = {".css": "text/css", ".js": "text/javascript"}


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
            answer.headers.update(self._guard.headers)
            await answer(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [
                    (name.lower().encode(), value.encode()) for name, value in self._guard.headers.items()
                ]
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


def make_app(board: Board, guard: Guard, streams: Streams) -> GuardedApp:
    """The whole dashboard as an ASGI application."""
    pages = Pages(board, guard, streams)
    routes = [
        Route("/", pages.runs),
        Route("/run/{key:path}", pages.run),
        Route("/compare", pages.compare),
        *(Route(f"/{name}", pages.plain) for name in _PLAIN),
        Route("/static/{name}", pages.static),
        Route("/api/runs", pages.rows),
        Route("/api/keys", pages.config_keys),
        Route("/api/what-if/{key:path}", pages.what_if),
        Route("/api/stop/{key:path}", pages.stop, methods=["POST"]),
        Route("/events/runs", pages.runs_events),
        Route("/events/run/{key:path}", pages.run_events),
        Route("/events/compare", pages.compare_events),
        *(Route(f"/events/{name}", pages.plain_events) for name in _PLAIN),
    ]
    return GuardedApp(Starlette(routes=routes, exception_handlers={FlatoutError: _say}), guard)


async def _say(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 404)


class Pages:
    """Handlers, one for each address. All but those of the list need what explains runs, which takes a moment to load:
    it is imported when it is first asked for, so that the list is there at once."""

    def __init__(self, board: Board, guard: Guard, streams: Streams) -> None:
        self._board = board
        self._guard = guard
        self._streams = streams

    @cached_property
    def _watched(self) -> "WatchedRuns":
        from flatout.commands.dashboard_run import WatchedRuns

        return WatchedRuns(self._board)

    async def runs(self, request: Request) -> Response:
        return HTMLResponse(runs_shell())

    async def run(self, request: Request) -> Response:
        may_act = self._guard.is_token(request.cookies.get(self._guard.cookie))

        def page() -> str:
            from flatout.commands.dashboard_pages import run_shell

            return run_shell(self._watched, self._board.glance(request.path_params["key"]), may_act)

        return HTMLResponse(await run_in_threadpool(page))

    async def compare(self, request: Request) -> Response:
        def page() -> str:
            from flatout.commands.dashboard_pages import comparison_shell

            return comparison_shell(self._compared(request), request.query_params.get("by", "step"))

        return HTMLResponse(await run_in_threadpool(page))

    async def plain(self, request: Request) -> Response:
        def page() -> str:
            from flatout.commands.dashboard_pages import plain_shell

            return plain_shell(request.url.path[1:])

        return HTMLResponse(await run_in_threadpool(page))

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = static_file(name)
        if text is None:
            return PlainTextResponse("no such file\n", 404)
        return Response(text, media_type=_KINDS["." + name.rpartition(".")[2]])

    async def rows(self, request: Request) -> Response:
        columns = request.query_params.getlist("column")[:20]
        rows, _ = await run_in_threadpool(self._board.rows, columns)
        return JSONResponse(rows)

    async def config_keys(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self._board.config_keys))

    async def what_if(self, request: Request) -> Response:
        changes = [(name, value) for name, value in request.query_params.multi_items() if value]

        def answer() -> str:
            from flatout.commands.dashboard_pages import what_if

            return what_if(self._watched, request.path_params["key"], changes)

        return HTMLResponse(await run_in_threadpool(answer))

    async def stop(self, request: Request) -> Response:
        process = await run_in_threadpool(self._board.stop, request.path_params["key"])
        return JSONResponse({"asked": process})

    async def runs_events(self, request: Request) -> Response:
        columns = request.query_params.getlist("column")[:20]
        return self._streams.answer(self._follow_rows(request, columns))

    async def run_events(self, request: Request) -> Response:
        key = request.path_params["key"]

        def look() -> Looked:
            fragments, alarms = self._watched.fragments(key)
            return dict(fragments), {"alarms": [vars(alarm) for alarm in alarms]}

        return self._streams.answer(self._streams.follow_pieces(request, look))

    async def compare_events(self, request: Request) -> Response:
        keys, by = self._compared(request), request.query_params.get("by", "step")

        def look() -> Looked:
            from flatout.commands.dashboard_pages import comparison_fragments

            return comparison_fragments(self._watched, keys, by), {}

        return self._streams.answer(self._streams.follow_pieces(request, look))

    async def plain_events(self, request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]

        def look() -> Looked:
            from flatout.commands.dashboard_pages import plain_fragments

            return plain_fragments(self._board, name), {}

        return self._streams.answer(self._streams.follow_pieces(request, look))

    @staticmethod
    def _compared(request: Request) -> list[str]:
        return request.query_params.getlist("run")[:_MOST_COMPARED]

    async def _follow_rows(self, request: Request, columns: list[str]) -> AsyncIterator[str]:
        """Rows that changed. Of many runs the newest come first, and the rest as fast as it can be read."""
        sent: dict[str, Row] = {}
        going = await self._streams.go_on(request)
        while going:
            began = time.process_time()
            text, sent, unread = await run_in_threadpool(self._look_at_rows, columns, sent)
            yield text
            going = await self._streams.go_on(request, 0.0 if unread else push_pause(began))

    def _look_at_rows(self, columns: list[str], sent: dict[str, Row]) -> tuple[str, dict[str, Row], int]:
        """The event, all rows, and how many are still to come."""
        found, unread = self._board.rows(columns, _FIRST_SECONDS)
        rows = {row["key"]: row for row in found}
        changed = [row for key, row in rows.items() if (before := sent.get(key)) is not row and before != row]
        gone = [key for key in sent if key not in rows]
        return event_text("rows", {"changed": changed, "gone": gone, "unread": unread}), rows, unread
