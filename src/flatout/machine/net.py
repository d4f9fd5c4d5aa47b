"""Bytes through the network interfaces, how fast their links are, and which one training traffic takes."""

import ipaddress
import os
import socket
from typing import Any

import psutil

from flatout.machine.files import read_int, read_text
from flatout.machine.sampler import Cell

_UP = 1  # flag of a route in use


def parse_traffic(text: str | None) -> dict[str, tuple[int, int]]:
    """Bytes sent and received of each interface, from /proc/net/dev."""
    found = {}
    for line in (text or "").splitlines():
        name, colon, counters = line.partition(":")
        fields = counters.split()
        if colon and len(fields) >= 9 and fields[0].isdigit():
            found[name.strip()] = (int(fields[8]), int(fields[0]))
    return found


def default_interface(routes: str | None) -> str | None:
    """The interface of the default route with the lowest metric, from /proc/net/route."""
    found = []
    for line in (routes or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == "00000000" and fields[7] == "00000000" and int(fields[3], 16) & _UP:
            found.append((int(fields[6]), fields[0]))
    return min(found)[1] if found else None


def is_local(host: str) -> bool:
    """Whether it is a loopback address. Of names only localhost is trusted to be one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def interface_to(host: str | None) -> str | None:
    """The interface that packets to an address leave by; names are not looked up, that would be traffic itself."""
    if host is None:
        return default_interface(read_text("/proc/net/route"))
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # of a datagram socket: chooses a route, sends nothing
            own = probe.getsockname()[0]
    except ValueError:
        return interface_to(None)
    except OSError:
        return None
    addresses = psutil.net_if_addrs()
    return next((name for name in addresses if any(each.address == own for each in addresses[name])), None)


def link_bits_per_second(interface: str) -> int | None:
    """As the driver says; many virtual machines' drivers say -1 or nothing."""
    megabits = read_int(f"/sys/class/net/{interface}/speed")
    return megabits * 10**6 if megabits is not None and megabits > 0 else None


def interface_names() -> list[str]:
    """All that the kernel lists; none where it does not say."""
    try:
        return sorted(os.listdir("/sys/class/net"))
    except OSError:
        return []


def recorded_interfaces(training: str | None) -> list[str]:
    """Real devices, the way out, and the one that training uses; not the dozens of a machine that runs containers."""
    devices = [name for name in interface_names() if os.path.exists(f"/sys/class/net/{name}/device")]
    return sorted({*devices, *(name for name in (training, interface_to(None)) if name is not None)})


class NetReader:
    """Bytes through the recorded interfaces since the last look."""

    def __init__(self, training: str | None) -> None:
        self._training = training
        self._interfaces = recorded_interfaces(training)
        self._before: dict[str, tuple[int, int]] = {}

    def describe(self) -> dict[str, Any]:
        return {
            "interface": self._training,
            "links_bits_per_second": {name: link_bits_per_second(name) for name in self._interfaces},
        }

    def read(self, interval_seconds: float | None) -> dict[str, Cell]:
        now = parse_traffic(read_text("/proc/net/dev"))
        row: dict[str, Cell] = {}
        for name in self._interfaces:
            for at, way in enumerate(("sent", "received")):
                known = name in now and name in self._before
                row[f"nic_{name}_{way}_bytes"] = _passed(self._before[name][at], now[name][at]) if known else None
        self._before = now
        return row


def _passed(before: int, now: int) -> int | None:
    """None where the counter started anew, as after an interface went down and up."""
    return now - before if now >= before else None
