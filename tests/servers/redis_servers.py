"""A real redis-server that can be killed and started again, and one that lies."""

import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from flatout.cache.redis_address import RedisAddress, parse_redis
from flatout.cache.redis_store import check_redis
from flatout.errors import ServiceUnavailable
from training import wait_until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """A redis-server of one's own; `options` as on its command line."""

    def __init__(self, folder: Path, *options: str, password: str | None = None, ca: Path | None = None) -> None:
        self.port = free_port()
        scheme = "redis" if ca is None else "rediss"
        self.address = parse_redis(f"{scheme}://127.0.0.1:{self.port}", password, ca)
        self._folder = folder
        self.start(*options)

    def start(self, *options: str) -> None:
        port = ["--port", "0", "--tls-port", str(self.port)] if self.address.tls else ["--port", str(self.port)]
        self.process = subprocess.Popen(
            ["redis-server", *port, "--bind", "127.0.0.1", "--save", "", "--dir", str(self._folder), *options],
            stdout=subprocess.DEVNULL,
        )
        wait_until(self.answers, "redis-server")

    def answers(self) -> bool:
        try:
            check_redis(self.address)
        except ServiceUnavailable:
            return False
        return True

    def command(self, *words: str) -> None:
        subprocess.run(["redis-cli", "-p", str(self.port), *words], check=True, capture_output=True)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Lie = Callable[[list[bytes]], bytes | None]  # a command's words -> the answer, or None for an honest one


class LyingRedis:
    """Keeps values as a Redis does, and answers as `lie` says. `heard` is what was asked; `hangs_up` after an answer."""

    hangs_up = False

    def __init__(self, lie: Lie) -> None:
        self.heard: list[list[bytes]] = []
        self.values: dict[bytes, bytes] = {}
        self.lie = lie
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while first := self.rfile.readline():
                    words = []
                    for _ in range(int(first[1:])):
                        count = int(self.rfile.readline()[1:])
                        words.append(self.rfile.read(count + 2)[:-2])
                    outer.heard.append(words)
                    answer = outer.lie(words)
                    if answer == b"":
                        return
                    self.wfile.write(outer.honest(words) if answer is None else answer)
                    if outer.hangs_up:
                        return

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Clients hang up on liars."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def address(self, scheme: str = "redis", password: str | None = None) -> RedisAddress:
        return parse_redis(f"{scheme}://127.0.0.1:{self.port}", password)

    def honest(self, words: list[bytes]) -> bytes:
        command, key = words[0], words[1] if len(words) > 1 else b""
        if command == b"SET":
            self.values[key] = words[2]
            return b"+OK\r\n"
        if command == b"PING":
            return b"+PONG\r\n"
        if command in (b"AUTH", b"SELECT"):
            return b"+OK\r\n"
        if command in (b"GET", b"GETRANGE"):
            value = self.values.get(key)
            if value is not None and command == b"GETRANGE":
                value = value[int(words[2]) : int(words[3]) + 1]
            return b"$-1\r\n" if value is None else b"$%d\r\n%b\r\n" % (len(value), value)
        return b":%d\r\n" % (len(self.values.get(key, b"")) if command == b"STRLEN" else 1)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
