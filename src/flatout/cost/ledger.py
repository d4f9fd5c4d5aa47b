"""From what a run used to what it cost: one line for everything paid for, adding up to the total."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from flatout.cost.catalogue import Catalogue

if TYPE_CHECKING:
    from flatout.config.schema import CostConfig, NodeCostConfig

    Nodes: TypeAlias = CostConfig | NodeCostConfig

SECONDS_PER_HOUR = 3600
SECONDS_PER_MONTH = 730 * SECONDS_PER_HOUR  # how clouds turn a month's price into an hour's
BYTES_PER_GB = 10**9
_BYTES_PER_ECPU = 1000
_Metered = tuple[str, float, str, tuple[str, str, str]]
"""Name, quantity, unit; section, entry and figure of the catalogue."""


@dataclass(frozen=True)
class Usage:
    """What was used, in base units. The usage of several attempts or jobs is their sum."""

    training_seconds: float = 0.0
    """Wall clock of the run, over all attempts; every training machine is paid for this long."""
    coordinator_seconds: float = 0.0
    """Wall clock of the coordinator nodes, or this job's share of it."""
    cache_seconds: float = 0.0
    """Wall clock of the cache, nodes or serverless, or this job's share of it."""
    cache_stored_byte_seconds: float = 0.0
    """Held in a serverless cache: bytes times seconds."""
    cache_transferred_bytes: float = 0.0
    """Written to and read from a serverless cache."""
    function_gb_seconds: float = 0.0
    function_requests: float = 0.0
    gets: float = 0.0
    puts: float = 0.0
    store_read_bytes: float = 0.0
    """Read from the object store; s3-express charges for it."""
    stored_byte_seconds: float = 0.0
    """Held in the object store: bytes times seconds."""
    transferred_bytes_cross_zone: float = 0.0
    """Each byte counted once; the bill counts it where it leaves and where it enters."""
    transferred_bytes_cross_region: float = 0.0
    transferred_bytes_internet: float = 0.0
    """Sent out to the internet; what comes in is free."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Usage)))


@dataclass(frozen=True)
class CostLine:
    """`usd` is quantity x unit_price_usd, in full precision."""

    name: str
    quantity: float
    unit: str
    unit_price_usd: float
    usd: float


@dataclass(frozen=True)
class Ledger:
    """What a run cost. `unpriced` names what was used but has no price, and how to give it one."""

    lines: tuple[CostLine, ...]
    prices_dated: str
    unpriced: tuple[str, ...] = ()

    @property
    def lines_usd(self) -> float:
        return math.fsum(line.usd for line in self.lines)

    @property
    def total_usd(self) -> float | None:
        """The sum of the lines; None where something has no price: a part is not the total."""
        return None if self.unpriced else self.lines_usd

    def to_dict(self) -> dict[str, Any]:
        """As in summary.json and cost.json."""
        return {
            "total_usd": self.total_usd,
            "lines": [asdict(line) for line in self.lines],
            "prices_dated": self.prices_dated,
            "unpriced": list(self.unpriced),
        }


@dataclass(frozen=True)
class _Item:
    """Something that is paid for; `usd` is the price of one unit and `setting` where a missing price can be given."""

    name: str
    quantity: float
    unit: str
    usd: float | None
    setting: str


def usage_cost(usage: Usage, cost: CostConfig, catalogue: Catalogue) -> Ledger:
    """Price what was used. An instance without a price raises (`hourly_rate_usd` finds it before the run); anything
    else without one is listed as unpriced, so that no run loses its report over a price."""
    lines, unpriced = [], []
    for item in _items(usage, cost, catalogue):
        if item.quantity <= 0:
            continue
        if item.usd is None:
            unpriced.append(f"{item.name} has no price; set {item.setting}")
        else:
            lines.append(CostLine(item.name, item.quantity, item.unit, item.usd, item.quantity * item.usd))
    return Ledger(tuple(lines), catalogue.dated, tuple(unpriced))


def run_usage(wall_seconds: float, cost: CostConfig, data: Mapping[str, Any] | None = None) -> Usage:
    """What a run used: its wall clock over all attempts, and its requests to the store (`data` of summary.json)."""
    data = data or {}
    coordinated = cost.coordinator.instance is not None or cost.coordinator.usd_per_hour is not None
    cached = cost.cache.instance is not None or cost.cache.usd_per_hour is not None or cost.cache.kind != "nodes"
    read_bytes = float(data.get("store_bytes") or 0)
    return Usage(
        training_seconds=wall_seconds,
        coordinator_seconds=wall_seconds if coordinated else 0.0,
        cache_seconds=wall_seconds if cached else 0.0,
        gets=float(data.get("store_requests") or 0),
        store_read_bytes=read_bytes,
        transferred_bytes_cross_region=read_bytes if cost.store.reached == "other-region" else 0.0,
        transferred_bytes_internet=read_bytes if cost.store.reached == "internet" else 0.0,
    )


def hourly_rate_usd(cost: CostConfig, catalogue: Catalogue) -> float | None:
    """What an hour costs whatever the run does: machines, their disks, coordinator and cache. None where the
    training machines have no price. An unknown instance raises, so ask before the first step."""
    return usage_cost(run_usage(SECONDS_PER_HOUR, cost), cost, catalogue).total_usd


@dataclass(frozen=True)
class SpendRates:
    """Prices of what grows while a run goes on, looked up once: the bar is drawn every few milliseconds. What has no
    price is left out, so this is the least that was spent; a limit that waited for all prices would never hold."""

    usd_per_second: float
    usd_per_request: float
    usd_per_byte: float

    def spent_usd(self, seconds: float, requests: float, read_bytes: float) -> float:
        return seconds * self.usd_per_second + requests * self.usd_per_request + read_bytes * self.usd_per_byte


def spend_rates(cost: CostConfig, catalogue: Catalogue) -> SpendRates | None:
    """None where the training machines have no price."""
    if cost.instance is None and cost.usd_per_hour is None:
        return None

    def price(seconds: float, data: Mapping[str, float]) -> float:
        return usage_cost(run_usage(seconds, cost, data), cost, catalogue).lines_usd

    return SpendRates(price(1.0, {}), price(0.0, {"store_requests": 1}), price(0.0, {"store_bytes": 1}))


def _items(usage: Usage, cost: CostConfig, catalogue: Catalogue) -> Iterator[_Item]:
    yield _nodes("training nodes", usage.training_seconds, cost, cost, catalogue)
    yield _nodes("coordinator nodes", usage.coordinator_seconds, cost.coordinator, cost, catalogue)
    if cost.cache.kind == "nodes":
        yield _nodes("cache nodes", usage.cache_seconds, cost.cache, cost, catalogue)
    metered = (
        *_serverless_cache(usage, cost, catalogue),
        *_functions(usage, cost),
        *_store(usage, cost),
        *_transfer(usage),
        *_disk(usage, cost, catalogue),
    )
    for name, quantity, unit, key in metered:
        price = catalogue.find(*key, cost.region)
        setting = f"{'.'.join(key)} for {cost.region} in a file named by cost.prices"
        yield _Item(name, quantity, unit, None if price is None else price.value, setting)


def _nodes(name: str, seconds: float, nodes: Nodes, cost: CostConfig, catalogue: Catalogue) -> _Item:
    spot = nodes is cost and cost.spot
    usd = nodes.usd_per_hour
    if nodes.instance is not None:
        usd = catalogue.hourly_usd(nodes.instance, spot, cost.region).value
    unit = f"{nodes.instance or 'node'}{' spot' if spot else ''} hours"
    section = "cost" if nodes is cost else f"cost.{name.split()[0]}"
    setting = f"{section}.instance or {section}.usd_per_hour"
    return _Item(name, seconds / SECONDS_PER_HOUR * nodes.count, unit, usd, setting)


def _serverless_cache(usage: Usage, cost: CostConfig, catalogue: Catalogue) -> Iterator[_Metered]:
    kind = cost.cache.kind
    if kind == "nodes":
        return
    minimum = catalogue.find("cache", kind, "minimum_gb", cost.region)
    minimum_gb_seconds = minimum.value * usage.cache_seconds if minimum else 0.0
    gb_hours = max(usage.cache_stored_byte_seconds / BYTES_PER_GB, minimum_gb_seconds) / SECONDS_PER_HOUR
    yield "cache storage", gb_hours, "GB-hours", ("cache", kind, "usd_per_gb_hour")
    million_ecpus = usage.cache_transferred_bytes / _BYTES_PER_ECPU / 1e6
    yield "cache requests", million_ecpus, "million ECPUs", ("cache", kind, "usd_per_million_ecpu")


def _functions(usage: Usage, cost: CostConfig) -> Iterator[_Metered]:
    kind = cost.functions.architecture
    yield "function compute", usage.function_gb_seconds, "GB-seconds", ("functions", kind, "usd_per_gb_second")
    requests = usage.function_requests / 1e6
    yield "function requests", requests, "million requests", ("functions", kind, "usd_per_million_requests")


def _store(usage: Usage, cost: CostConfig) -> Iterator[_Metered]:
    kind = cost.store.kind
    yield "object-store GETs", usage.gets / 1e3, "thousand requests", ("store", kind, "usd_per_thousand_gets")
    yield "object-store PUTs", usage.puts / 1e3, "thousand requests", ("store", kind, "usd_per_thousand_puts")
    if kind == "s3-express":
        yield "object-store reads", usage.store_read_bytes / BYTES_PER_GB, "GB", ("store", kind, "usd_per_gb_read")
    gb_months = usage.stored_byte_seconds / BYTES_PER_GB / SECONDS_PER_MONTH
    yield "object-store storage", gb_months, "GB-months", ("store", kind, "usd_per_gb_month")


def _transfer(usage: Usage) -> Iterator[_Metered]:
    both_ways = 2 * usage.transferred_bytes_cross_zone / BYTES_PER_GB
    yield "transfer across zones", both_ways, "GB out and in", ("transfer", "cross-zone", "usd_per_gb_each_way")
    regions = usage.transferred_bytes_cross_region / BYTES_PER_GB
    yield "transfer across regions", regions, "GB", ("transfer", "cross-region", "usd_per_gb")
    internet = usage.transferred_bytes_internet / BYTES_PER_GB
    yield "transfer to the internet", internet, "GB", ("transfer", "internet", "usd_per_gb")


def _disk(usage: Usage, cost: CostConfig, catalogue: Catalogue) -> Iterator[_Metered]:
    months = usage.training_seconds / SECONDS_PER_MONTH * cost.count
    yield "disks", cost.disk.bytes / BYTES_PER_GB * months, "GB-months", ("disk", "gp3", "usd_per_gb_month")
    included = catalogue.find("disk", "gp3", "included_mb_per_second", cost.region)
    extra = (cost.disk.mb_per_second or 0.0) - (included.value if included else 0.0)
    yield "disk throughput", extra * months, "MB/s-months", ("disk", "gp3", "usd_per_mb_per_second_month")
