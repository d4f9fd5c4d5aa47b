"""What lies between the ranks, measured before it costs anything: latency and bandwidth of the real all-reduce."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil
import torch
import torch.distributed as dist

from flatout.engine.parallel.group import Group

_SIZES = tuple(2**power for power in (18, 20, 22, 24))  # 256 KiB ... 16 MiB
_BUDGET_SECONDS = 2.5
_LATENCY_ROUNDS = 15
_MOST_TRIES = 6
_AGREE = 1.02  # two tries this close were held up by the wire alone, not by a busy host
_NODE_BYTES = 2**20
_MOST_NODES = 16  # one after the other, about 0.1 s each at 100 Mb/s


@dataclass(frozen=True)
class Node:
    """A machine, and how fast it exchanges bytes with the first one."""

    host: str
    interface: str
    nic_bits_per_second: float | None  # what the card says it can do
    bits_per_second: float | None


@dataclass(frozen=True)
class LinkFigures:
    """What was measured between the ranks; rates and latency are rank 0's."""

    backend: str
    world_size: int
    latency_seconds: float  # of an all-reduce of next to nothing
    bytes_per_second: float  # that one rank sends while a large all-reduce goes on
    rounds: tuple[tuple[int, float], ...]  # bytes, seconds
    nodes: tuple[Node, ...]


def measure_link(group: Group, device: torch.device, interface: str) -> LinkFigures:
    """On all ranks together; every rank gets the figures of rank 0."""
    world_size = group.place.world_size
    latency = min(_all_reduce_seconds(1, device) for _ in range(_LATENCY_ROUNDS))
    rounds: list[tuple[int, float]] = []
    left = _BUDGET_SECONDS
    for size in _SIZES:
        tries = agreeing(partial(_first_ranks_seconds, group, size // 4, device))
        seconds = min(tries)
        rounds.append((size, seconds))
        left -= sum(tries)
        if 2 * 4 * seconds > left:  # the next one would take four times as long
            break
    nodes = _nodes(group, interface)
    figures = [latency, bandwidth(rounds, world_size, latency)]
    latency, per_second = group.from_main(figures)
    return LinkFigures(group.backend, world_size, latency, per_second, tuple(rounds), nodes)


def agreeing(measure: Callable[[], float]) -> list[float]:
    """Tries until the two shortest agree: a busy host makes an exchange longer, but hardly twice by the same time."""
    tries = sorted([measure(), measure()])
    while len(tries) < _MOST_TRIES and tries[1] > _AGREE * tries[0]:
        tries = sorted([*tries, measure()])
    return tries


def bandwidth(rounds: list[tuple[int, float]], world_size: int, latency: float) -> float:
    """Bytes per second from the two largest rounds: their difference has neither the latency nor a shaper's burst."""
    (small, quick), (large, slow) = rounds[-2:] if len(rounds) > 1 else ((0, latency), rounds[0])
    if slow <= quick:  # noise on a link so fast that it does not matter
        small, quick = 0, 0.0
    return 2 * (world_size - 1) / world_size * (large - small) / (slow - quick)


def _first_ranks_seconds(group: Group, elements: int, device: torch.device) -> float:
    """By rank 0's clock on every rank, so that all of them try equally often."""
    return float(group.from_main(_all_reduce_seconds(elements, device)))


def _all_reduce_seconds(elements: int, device: torch.device) -> float:
    values = torch.zeros(elements, device=device)
    dist.barrier()
    started = time.perf_counter()
    dist.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _nodes(group: Group, interface: str) -> tuple[Node, ...]:
    """One row for each machine; the first rank of each exchanges a megabyte with rank 0."""
    place = group.place
    leaders = list(range(0, place.world_size, place.local_world_size))
    seconds = [_there_and_back_seconds(leader, group) for leader in leaders[1:_MOST_NODES]]
    rates: list[float | None] = [None, *(16 * _NODE_BYTES / each for each in group.from_main(seconds))]
    rates += [None] * (len(leaders) - len(rates))
    card = psutil.net_if_stats().get(interface)
    said = group.gather([place.host, interface, card.speed * 1e6 if card and card.speed else None])
    rows = [(*said[leader], rate) for leader, rate in zip(leaders, rates, strict=True)]
    return tuple(Node(host, name, nic, rate) for host, name, nic, rate in rows)


def _there_and_back_seconds(leader: int, group: Group) -> float:
    """Of a message from rank 0 to another and back, by rank 0's clock: sending alone ends in the system's buffers."""
    values, started = torch.zeros(_NODE_BYTES, dtype=torch.uint8), time.perf_counter()
    if group.place.rank == 0:
        dist.send(values, leader, group=group.control)
        dist.recv(values, leader, group=group.control)
    elif group.place.rank == leader:
        dist.recv(values, 0, group=group.control)
        dist.send(values, 0, group=group.control)
    return time.perf_counter() - started
