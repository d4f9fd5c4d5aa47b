"""Starts the dashboard: chooses a port, makes the token, serves until it is told to end."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from flatout.commands.dashboard import Board
from flatout.errors import ConfigError, FlatoutError
from flatout.machine.parents import child_environment, exit_with_parent
from flatout.web.guard import LOOPBACK, Guard

_FIRST_PORT = 8420
_FRAMED = "--framed"


def serve_dashboard(
    folders: list[Path],
    host: str,
    port: int | None,
    allow_hosts: list[str],
    token_file: Path | None,
    say: TextIO,
    framed: bool = False,
) -> None:
    """In the foreground, until Ctrl-C or SIGTERM; the address goes to `say`. `framed`: pages of this machine (a
    notebook) may show it in a frame; the token stays unsaid, so that a frame can be looked at and nothing else."""
    try:
        import uvicorn

        from flatout.web.app import make_app
        from flatout.web.streams import Streams
    except ImportError as error:
        raise ConfigError(f"the dashboard needs {error.name}; pip install 'flatout[web]'") from None
    on_loopback = host in LOOPBACK
    listener = _listen(host, port)
    number = listener.getsockname()[1]
    token = _token(token_file)
    guard = Guard(
        token, (*LOOPBACK, host.lower(), *map(str.lower, allow_hosts)), on_loopback, f"flatout_{number}", framed
    )
    shown = "127.0.0.1" if host == "localhost" else f"[{host}]" if ":" in host else host
    lines = [f"dashboard: http://{shown}:{number}/" + ("" if framed else f"?token={token}")]
    if not on_loopback:
        lines.append("  others need the token to look, too; it travels in clear: an ssh tunnel hides it")
    say.write("\n".join(lines) + "\n")
    say.flush()
    with suppress(OSError, AttributeError):
        os.nice(10)  # training goes first
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # never takes a core at once; IDLE may get none
    streams = Streams()
    config = uvicorn.Config(
        make_app(Board(folders), guard, streams),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )

    class Server(uvicorn.Server):
        async def main_loop(self) -> None:
            await streams.wait_for_end()  # uvicorn's own asks ten times a second, for as long as it lives

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            streams.end()  # else it would wait for pages that are open
            super().handle_exit(sig, frame)

    Server(config).run(sockets=[listener])


def start_beside(folder: Path) -> None:
    """A dashboard of its own process for as long as this one lives; it says its address by itself. What keeps it from
    starting (the extra is not installed) is said, and training goes on."""
    _start([folder])


def start_framed(folders: list[Path]) -> "subprocess.Popen[str]":
    """As `start_beside`, for a frame in a notebook: its address is the one line of its standard output."""
    return _start([*folders, _FRAMED], subprocess.PIPE)


def _start(arguments: Sequence[str | Path], stdout: int | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "flatout.web.server", *map(str, arguments)]
    environment = {**os.environ, **child_environment()}
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, text=True)


def _listen(host: str, port: int | None) -> socket.socket:
    """The port that was asked for, or the first free one from 8420 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in [port] if port is not None else [*range(_FIRST_PORT, _FIRST_PORT + 20), 0]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)
            return listener
        except OSError as error:
            listener.close()
            if port is not None:
                raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    raise ConfigError(f"cannot listen on {host}; choose another --host")


def _token(path: Path | None) -> str:
    """A new one for every start, or the one in a file that only its owner can read (made where it is not there)."""
    if path is None:
        return secrets.token_urlsafe(24)
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path} can be read by others; chmod 600 {path}") from None
        token = path.read_text("ascii", errors="replace").strip()
        if len(token) < 16:
            raise ConfigError(f"{path} holds {len(token)} characters, 16 are needed; delete it for a new one") from None
        return token
    except OSError as error:
        raise ConfigError(f"cannot write the token to {path}: {error.strerror}") from None
    with os.fdopen(made, "w") as file:
        file.write(secrets.token_urlsafe(24) + "\n")
    return path.read_text("ascii").strip()


def _beside(arguments: list[str]) -> None:
    """What `start_beside` and `start_framed` start."""
    exit_with_parent()
    framed = arguments[-1] == _FRAMED
    folders = [Path(each) for each in arguments if each != _FRAMED]
    try:
        serve_dashboard(folders, "127.0.0.1", None, [], None, sys.stdout if framed else sys.stderr, framed)
    except FlatoutError as error:
        sys.stderr.write(f"flatout: {error}\n")


if __name__ == "__main__":
    _beside(sys.argv[1:])
