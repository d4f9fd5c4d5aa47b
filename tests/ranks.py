"""Several ranks of one run for tests: processes with torchrun's environment, or torchrun itself."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from training import Command, Finished, start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def places(world_size: int) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun would set it; rank 0 keeps the store. One process is no rank."""
    if world_size == 1:
        return [{}]
    shared = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": free_port()}
    return [
        {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        for rank in range(world_size)
    ]


def start_ranks(world_size: int, *arguments: object, cwd: Path) -> list[Command]:
    """`flatout ARGUMENTS` as so many ranks on this machine."""
    return [start(*arguments, cwd=cwd, environment=place) for place in places(world_size)]


def run_ranks(world_size: int, *arguments: object, cwd: Path) -> list[Finished]:
    return [each.wait() for each in start_ranks(world_size, *arguments, cwd=cwd)]


def torchrun(*arguments: object, ranks: int, cwd: Path, max_restarts: int = 0) -> "subprocess.Popen[str]":
    """torchrun in a session of its own; what it and its ranks say goes to torchrun.txt."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts",
        str(max_restarts), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
        "-m", "flatout", *map(str, arguments),
    ]  # fmt: skip
    with (cwd / "torchrun.txt").open("a") as said:
        return subprocess.Popen(
            command, cwd=cwd, env={**os.environ, "COLUMNS": "200"}, stdout=said, stderr=said, text=True,
            start_new_session=True,
        )  # fmt: skip
