"""Two machines in one: network namespaces joined by a veth pair whose speed is capped. Needs root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
INTERFACE = "link0"
_PORT = 29511  # inside the namespaces nobody else has it


def why_not() -> str | None:
    """Why namespaces cannot be made here, or None."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed (apt-get install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["ip", "netns", "add", f"flatout-probe-{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"network namespaces are not allowed here: {probe.stderr.strip()}"
    _run("ip", "netns", "delete", f"flatout-probe-{os.getpid()}")
    return None


class TwoNodes:
    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names

    def cap(self, rate: str) -> None:
        """`100mbit`, `1gbit`: what each direction carries from now on."""
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                _in(name, "tc", "qdisc", "delete", "dev", INTERFACE, "root")
            # a burst of two milliseconds at least, and of the largest packet the kernel hands over in one piece
            burst = "256kb" if rate.endswith("gbit") else "70kb"
            _in(name, "tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", rate, "burst", burst,
                "latency", "100ms")  # fmt: skip

    def start(
        self, *arguments: object, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> "list[subprocess.Popen[str]]":
        """`python ARGUMENTS` as one rank on each node, with torchrun's environment; rank 0's words go to node0.txt."""
        processes = []
        for rank, name in enumerate(self.names):
            place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                     "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": _PORT}  # fmt: skip
            with (cwd / f"node{rank}.txt").open("w") as said:
                processes.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", name, sys.executable, *map(str, arguments)], cwd=cwd, text=True,
                        env={**os.environ, "COLUMNS": "200", **{key: str(value) for key, value in place.items()},
                             **(environment or {})},
                        stdout=said, stderr=said,
                    )
                )  # fmt: skip
        return processes


@contextmanager
def two_nodes(rate: str) -> Iterator[TwoNodes]:
    names = (f"flatout-a-{os.getpid()}", f"flatout-b-{os.getpid()}")
    ends = (f"fa{os.getpid()}"[:15], f"fb{os.getpid()}"[:15])
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, ADDRESSES, strict=True):
            _run("ip", "link", "set", end, "netns", name, "name", INTERFACE)
            _in(name, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            _in(name, "ip", "link", "set", INTERFACE, "up")
            _in(name, "ip", "link", "set", "lo", "up")
        nodes = TwoNodes(names)
        nodes.cap(rate)
        yield nodes
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


class Island:
    """A network namespace with nothing but loopback, whose packets can be dropped."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, *words: object, cwd: Path, **environment: str) -> "subprocess.Popen[bytes]":
        with (cwd / "said.txt").open("ab") as said:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *map(str, words)], cwd=cwd, stdout=said, stderr=said,
                env={**os.environ, **environment},
            )  # fmt: skip

    def drop(self, all_packets: bool) -> None:
        """No packet fits a bucket of this size: sent, and never seen again; nobody is told."""
        rule = ["root", "tbf", "rate", "1kbit", "burst", "10", "limit", "10"] if all_packets else ["root"]
        tc = ["tc", "qdisc", "add" if all_packets else "delete", "dev", "lo", *rule]
        subprocess.run(["ip", "netns", "exec", self.name, *tc], check=True, capture_output=True)


@contextmanager
def island(*addresses: str) -> Iterator[Island]:
    """With these addresses (`8.8.8.8/32`) of its own beside 127.0.0.1."""
    name = f"flatout-island-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"], check=True)
        for address in addresses:
            _in(name, "ip", "address", "add", address, "dev", "lo")
        yield Island(name)
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _in(namespace: str, *command: str) -> None:
    _run("ip", "netns", "exec", namespace, *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
