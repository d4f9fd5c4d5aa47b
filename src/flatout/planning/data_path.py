"""How fast samples reach the device on another machine: decoding by its vCPUs, reading from its store."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.cost.machines import Machine
from flatout.decisions.choice import AUTO
from flatout.decisions.loading import choose_workers
from flatout.diagnosis.model.input import Loading, PreparationCosts, batches_per_second, fetch_seconds
from flatout.diagnosis.model.interval import Interval

_FAMILIES = {
    "g4dn": 0.85,
    "g5": 1.0,
    "g6": 1.1,
    "g6e": 1.1,
    "p3": 0.75,
    "p4d": 0.9,
    "p4de": 0.9,
    "p5": 1.1,
    "p5e": 1.1,
    "p6": 1.2,
    "n1": 0.75,
    "a2": 0.9,
    "a3": 1.05,
    "g2": 0.9,
    "Standard_NC": 0.95,
    "Standard_ND": 1.0,
    "gpu_": 0.95,
    "BM": 1.0,
    "VM": 1.0,
}
"""What one vCPU (a hyper-thread, its neighbour busy too) decodes, relative to one of a Zen 2 or Ice Lake server. By the
processors these machines are stated to have; measured nowhere yet, so that the interval is wide."""
OWN_SPREAD, KNOWN_FAMILY_SPREAD, UNKNOWN_FAMILY_SPREAD = 0.1, 0.2, 0.35
_VCPUS_PER_CARD = 8.0
"""Where a catalogue does not say."""


@dataclass(frozen=True)
class StoreClass:
    """A class of storage as its tenants find it."""

    name: str
    latency_seconds: float
    stream_bytes_per_second: float
    bytes_per_second: float
    """For all requests together; a machine's network caps it further where that is known."""
    fetchers: int = 0
    remote: bool = False
    core_seconds_per_byte: float = 0.0
    """What receiving takes of the cores that decode."""


STORES = {
    "nvme": StoreClass("local NVMe", 0.0001, 1e9, 1.5e9),
    "disk": StoreClass("network disk (gp3)", 0.001, 125e6, 125e6),
    "s3": StoreClass("object store", 0.03, 60e6, 1.2e9, fetchers=64, remote=True, core_seconds_per_byte=2e-9),
    "memory": StoreClass("memory", 0.0, math.inf, math.inf),
    "unknown": StoreClass("a disk that no catalogue names", 0.0005, 400e6, 400e6),
}
"""Besides these, `local` is the machine's own disk, and memory once the files of an epoch have been read into it."""
_UNKNOWN_NETWORK_GBPS = 5.0


@dataclass(frozen=True)
class Samples:
    """What is known of the data, and how."""

    count: int
    validation_count: int
    bytes_each: float
    decode_seconds: float
    """Decoding one sample on one core of the machine that measured it."""
    augment_seconds: float
    decoded_bytes: float
    """Of one decoded sample: what a cache in memory would hold."""
    basis: str
    store: str = "local"
    """`local` or a key of STORES: where the recipe's path lies."""
    core_factor: float = 1.0
    """The measuring core relative to the reference of _FAMILIES."""

    @property
    def preparing_seconds(self) -> float:
        return self.decode_seconds + self.augment_seconds


@dataclass(frozen=True)
class DataFeed:
    """What limits the samples on one machine."""

    per_second: Interval
    limit: str
    """decode, store, disk or network."""
    vcpus: float
    kept_in_memory: bool


def family_factor(machine: Machine) -> tuple[float, float]:
    """A vCPU's speed and how sure that is, as a spread in logarithms. A core here is the one that measured."""
    if machine.cloud == "own":
        return 1.0, OWN_SPREAD
    family = machine.name.partition(".")[0]
    for known in sorted(_FAMILIES, key=len, reverse=True):
        if family == known or (machine.name.startswith(known) and known[-1:] in "_CDM"):
            return _FAMILIES[known], KNOWN_FAMILY_SPREAD
    return 0.95, UNKNOWN_FAMILY_SPREAD


def feed_of(
    samples: Samples, machine: Machine, batch: float, epochs: int, cached: bool, host_seconds: float = 0.0
) -> DataFeed:
    """Samples per second of a warm epoch, `batch` of them at a time for all ranks of the machine. `host_seconds` are
    core seconds that the training threads take for such a batch: they launch kernels."""
    factor, spread = family_factor(machine)
    vcpus = machine.vcpus or _VCPUS_PER_CARD * machine.gpus
    if machine.vcpus is None:
        spread = UNKNOWN_FAMILY_SPREAD
    scale = samples.core_factor / factor
    held = cached and epochs > 1 and _fits_memory(samples, machine)
    store = STORES["memory" if held else store_name(samples, machine, epochs)]
    receiving = 0.0 if held else samples.bytes_each * store.core_seconds_per_byte
    costs = PreparationCosts(
        ((samples.augment_seconds if held else samples.preparing_seconds) + receiving) * scale,
        0.0 if held else samples.bytes_each,
        store.latency_seconds,
        store.stream_bytes_per_second,
    )
    loading, store_limit, known = _loading(store, machine, vcpus)
    together = vcpus / (host_seconds + batch * costs.decode_seconds) if host_seconds else math.inf
    rate = min(batches_per_second(batch, costs, loading), together) * batch
    fetching = fetch_seconds(1, costs, loading.in_flight)
    by_store = costs.bytes > 0 and rate >= 0.999 * loading.storage_bytes_per_second / costs.bytes
    # fetchers wait beside the cores that decode; without them a worker does the one after the other
    waiting = fetching * vcpus / store.fetchers if store.fetchers else fetching
    limit = store_limit if by_store or waiting > costs.decode_seconds else "decode"
    if not known and limit != "decode":
        spread = max(spread, UNKNOWN_FAMILY_SPREAD)
    wide = Interval(rate, rate * math.exp(-spread), rate * math.exp(spread))
    return DataFeed(wide, limit, vcpus, held)


def _fits_memory(samples: Samples, machine: Machine) -> bool:
    """Half of the memory is for batches and the rest of the machine."""
    return machine.memory_gib is not None and samples.count * samples.decoded_bytes <= 0.5 * machine.memory_gib * 2**30


def store_name(samples: Samples, machine: Machine, epochs: int) -> str:
    """Files that fit into half of the memory are read from the disk once."""
    if samples.store != "local":
        return samples.store
    memory = (machine.memory_gib or 0.0) * 2**30
    if epochs > 1 and samples.count * samples.bytes_each <= 0.5 * memory:
        return "memory"
    return machine.local_disk if machine.local_disk in STORES else "unknown"


def automatic_workers(machine: Machine, cores: float) -> int:
    """Of each rank, as training chooses them."""
    return choose_workers(AUTO, math.ceil(cores / machine.gpus), "cuda").value


def _loading(store: StoreClass, machine: Machine, cores: float) -> tuple[Loading, str, bool]:
    """With what limits the store, and whether that is known."""
    cap, limit, known = store.bytes_per_second, "disk", store is not STORES["unknown"]
    if store.remote:
        limit, known = "store", machine.network_gbps is not None
        network = (machine.network_gbps or _UNKNOWN_NETWORK_GBPS) * 1e9 / 8
        if network < cap:
            cap, limit = network, "network"
    workers = float(machine.gpus * automatic_workers(machine, cores))
    return Loading(workers, cores, in_flight=1.0, fetchers=store.fetchers, storage_bytes_per_second=cap), limit, known
