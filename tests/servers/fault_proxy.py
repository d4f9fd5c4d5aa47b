"""An HTTP proxy in its own process that passes requests on unchanged, and misbehaves when told to.

The Host header stays as the client signed it, so SigV4 verifies behind the proxy. Faults are set and counters read over
the control path on the same port; see servers/proxy_client.py for the object tests use.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from typing import cast

from servers.faults import Chooser, Faults, Rule

CONTROL_PATH = b"/__faults__"
_REASONS = {400: "Bad Request", 403: "Forbidden", 404: "Not Found", 500: "Internal Server Error", 503: "Slow Down"}
SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Proxy:
    """State all connections share: the faults in force, the counters, and the one line answers leave on."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.upstream = (upstream_host, upstream_port)
        self.loop = asyncio.get_running_loop()
        self.reset()
        self.set_faults(Faults())

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self.chooser = Chooser(faults)
        self.faults_since = self.line_free_at = time.monotonic()

    def reset(self) -> None:
        self.requests = self.in_flight = self.max_in_flight = self.body_bytes = 0
        self.hits: dict[str, int] = {}

    def begin(self, method: str, target: str) -> Rule | None:
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        rule = self.chooser.choose(method, target, time.monotonic() - self.faults_since)
        if rule is not None:
            self.hits[rule.kind] = self.hits.get(rule.kind, 0) + 1
        return rule

    def line_delay(self, byte_count: int) -> float:
        if not self.faults.bytes_per_second:
            return 0.0
        now = time.monotonic()
        self.line_free_at = max(now, self.line_free_at) + byte_count / self.faults.bytes_per_second
        return self.line_free_at - now

    def control(self, method: str, body: bytes) -> bytes:
        if method == "PUT":
            self.set_faults(Faults.from_json(body.decode()))
        if method == "DELETE":
            self.reset()
        names = ("requests", "in_flight", "max_in_flight", "body_bytes", "hits")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


class ClientSide(asyncio.Protocol):
    """One connection from a client, paired with at most one connection upstream."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.upstream: ServerSide | None = None
        self.busy = False
        self.rule: Rule | None = None
        self.method = ""
        self.passed_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.busy:
            self.finish()
        self.drop_upstream()

    def pause_writing(self) -> None:
        if self.upstream and self.upstream.transport:
            self.upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.upstream and self.upstream.transport:
            self.upstream.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy:
            self._next_request()

    def _next_request(self) -> None:
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        total = head_end + 4 + _content_length(bytes(self.buffer[: head_end + 2]))
        if len(self.buffer) < total:
            return
        request = bytes(self.buffer[:total])
        del self.buffer[:total]
        method, target, _ = request[: request.index(b"\r\n")].split(b" ", 2)
        self.method = method.decode()
        if target.startswith(CONTROL_PATH):
            self._reply(200, self.proxy.control(self.method, request[head_end + 4 :]))
            return
        self.busy, self.passed_bytes = True, 0
        self.rule = self.proxy.begin(self.method, target.decode("latin-1"))
        if self.proxy.faults.latency_seconds:
            self.proxy.loop.call_later(self.proxy.faults.latency_seconds, self._forward, request)
        else:
            self._forward(request)

    def _forward(self, request: bytes) -> None:
        if self.transport is None:
            return
        if self.rule is not None and self.rule.kind in ("throttle", "answer"):
            throttle = self.rule.kind == "throttle"
            self._reply(503 if throttle else self.rule.status, (SLOW_DOWN if throttle else self.rule.body).encode())
            self.finish()
        elif self.upstream is not None and self.upstream.usable():
            self.upstream.send(request)
        else:
            self.upstream = ServerSide(self)
            self.upstream.opening = self.proxy.loop.create_task(self.upstream.open(request))

    def _reply(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'OK')}\r\nContent-Type: application/xml\r\n"
        if self.transport is not None:
            self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def finish(self) -> None:
        """The request is over, whatever became of it."""
        if self.busy:
            self.busy = False
            self.proxy.in_flight -= 1
            if self.buffer:
                self._next_request()

    def drop_upstream(self) -> None:
        if self.upstream is not None and self.upstream.transport is not None:
            self.upstream.transport.abort()
        self.upstream = None

    def pass_on(self, head: bytes, body: bytes, last: bool) -> None:
        """Write what came from upstream, or as much as the rule lets through."""
        if self.transport is None:
            return
        rule, before = self.rule, self.passed_bytes
        self.passed_bytes += len(body)
        self.proxy.body_bytes += len(body)
        if rule is not None and rule.kind == "corrupt" and before <= rule.after_bytes < self.passed_bytes:
            at = rule.after_bytes - before
            body = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
        if rule is not None and rule.kind == "etag":
            head = re.sub(rb'(?i)(etag: ")[0-9a-f]{32}', rb"\g<1>" + b"0" * 32, head)
        whole = rule is None or rule.kind in ("corrupt", "etag")
        cut = not whole and self.passed_bytes > rule.after_bytes
        self.transport.write(head + (body[: rule.after_bytes - before] if cut and rule else body))
        if cut:
            self._break_off(cast(Rule, rule))
        elif last:
            self.finish()

    def _break_off(self, rule: Rule) -> None:
        self.drop_upstream()
        if rule.kind == "stall" or self.transport is None:
            return  # the client holds an open connection on which nothing comes any more
        if rule.kind == "truncate":
            self.transport.close()
        else:
            self.transport.abort()


class ServerSide(asyncio.Protocol):
    """One connection to the real server."""

    def __init__(self, client: ClientSide) -> None:
        self.client = client
        self.transport: asyncio.Transport | None = None
        self.opening: asyncio.Task[None] | None = None
        self.head = b""
        self.left: int | None = 0
        self.in_body = False

    async def open(self, request: bytes) -> None:
        try:
            await self.client.proxy.loop.create_connection(lambda: self, *self.client.proxy.upstream)
        except OSError:
            if self.client.transport is not None:
                self.client.transport.abort()
            return
        self.send(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.client.upstream is self and self.client.busy and self.client.transport is not None:
            self.client.transport.close()

    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send(self, request: bytes) -> None:
        self.head, self.in_body = b"", False
        if self.transport is not None:
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        head = b""
        if not self.in_body:
            self.head += data
            head_end = self.head.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head, data = self.head[: head_end + 4], self.head[head_end + 4 :]
            self.in_body = True
            head, self.left = _answer_head(head, self.client.method)
        if self.left is None:
            last = data.endswith(b"0\r\n\r\n")
        else:
            self.left -= len(data)
            last = self.left <= 0
        delay = self.client.proxy.line_delay(len(data))
        if delay > 0 and self.transport is not None:
            self.transport.pause_reading()
            self.client.proxy.loop.call_later(delay, self._deliver, head, data, last)
        else:
            self.client.pass_on(head, data, last)

    def _deliver(self, head: bytes, data: bytes, last: bool) -> None:
        self.client.pass_on(head, data, last)
        if self.transport is not None:
            self.transport.resume_reading()


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(b"\r\ncontent-length:")
    return int(lowered[at + 17 : lowered.index(b"\r\n", at + 17)]) if at >= 0 else 0


def _answer_head(head: bytes, method: str) -> tuple[bytes, int | None]:
    """The head to pass on, and how many body bytes follow (None: chunked).

    rclone 1.75 answers ranges with status 200 and a Content-Range; S3 says 206, and obstore insists on it.
    """
    lowered = head.lower()
    if head.startswith(b"HTTP/1.1 200") and b"\r\ncontent-range:" in lowered:
        head = b"HTTP/1.1 206 Partial Content" + head[head.index(b"\r\n") :]
    if method == "HEAD" or head[9:12] in (b"204", b"304"):
        return head, 0
    return head, None if b"\r\ntransfer-encoding: chunked" in lowered else _content_length(head)


async def serve(upstream_host: str, upstream_port: int) -> None:
    proxy = Proxy(upstream_host, upstream_port)
    server = await proxy.loop.create_server(lambda: ClientSide(proxy), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    # The parent holds our stdin open; end of file means it is gone, even by kill -9.
    await proxy.loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("upstream_host")
    parser.add_argument("upstream_port", type=int)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.upstream_host, arguments.upstream_port))


if __name__ == "__main__":
    main()
