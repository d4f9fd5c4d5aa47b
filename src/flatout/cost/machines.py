"""Machines for rent: card, vCPUs, memory and prices, from the shipped table and the user's price file on top of it."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from flatout.errors import ConfigError
from flatout.untrusted import number

_SHIPPED = Path(__file__).with_name("instances.csv")
_NUMBERS = ("vcpus", "memory_gib", "usd_per_hour", "spot_usd_per_hour", "network_gbps")
FIELDS = ("cloud", "gpu", "gpus", *_NUMBERS, "local_disk")
"""What an entry under `instances` of a price file may say of a machine besides its region and date."""
OLD_DAYS = 90
"""Prices older than this are said to be."""


@dataclass(frozen=True)
class Machine:
    """One kind of machine. None is not known, and widens what is said of it."""

    name: str
    cloud: str
    gpu: str
    gpus: int
    vcpus: float | None
    memory_gib: float | None
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    network_gbps: float | None
    local_disk: str | None
    region: str
    as_of: str

    @property
    def only_card(self) -> bool:
        """A price of the card alone: the machine around it comes on top."""
        return self.name.startswith("gpu:")

    def hourly_usd(self, spot: bool) -> float | None:
        return self.spot_usd_per_hour if spot else self.usd_per_hour


def load_machines(prices: Mapping[str, Any] | None = None) -> list[Machine]:
    """The shipped machines; entries of a price file (its parsed YAML) replace those of their name and add others."""
    machines = {each.name: each for each in _shipped()}
    if prices is not None:
        for name, entry in (prices.get("instances") or {}).items():
            machine = _from_entry(str(name), entry, machines.get(str(name)), prices)
            if machine is not None:
                machines[machine.name] = machine
    return list(machines.values())


@functools.cache
def _shipped() -> tuple[Machine, ...]:
    with _SHIPPED.open(encoding="utf-8", newline="") as file:
        return tuple(_from_row(row) for row in csv.DictReader(line for line in file if not line.startswith("#")))


def _from_row(row: Mapping[str, str]) -> Machine:
    numbers = {name: float(row[name]) if row[name] else None for name in _NUMBERS}
    disk = row["local_disk"] or None
    return Machine(
        row["instance"],
        row["cloud"],
        row["gpu"],
        int(row["gpus"]),
        **numbers,
        local_disk=disk,
        region=row["region"],
        as_of=row["as_of"],
    )


def _from_entry(
    name: str, entry: Mapping[str, Any], known: Machine | None, prices: Mapping[str, Any]
) -> Machine | None:
    """An entry without a card is a machine without one, unless its name is known."""
    told = {field: entry[field] for field in FIELDS if field in entry}
    when: dict[str, Any] = {
        "as_of": str(entry.get("as_of", prices["dated"])),
        "region": str(entry.get("region", "us-east-1")),
    }
    if known is not None:
        return replace(known, **told, **when)
    if "gpu" not in told:
        return None
    blank: dict[str, Any] = dict.fromkeys((*_NUMBERS, "local_disk"))
    return Machine(name=name, **{**blank, "cloud": "own", "gpus": 1, **told}, **when)


def days_old(as_of: str, today: date) -> int | None:
    """Of a date like 2026-08 (its first day), 2026 or 2026-08-22; None where it says none."""
    parts = as_of.split("-")
    try:
        numbers = [int(part) for part in parts] + [1, 1]
        return (today - date(*numbers[:3])).days
    except (ValueError, TypeError, OverflowError):
        return None


def read_skypilot(text: str, where: str, dated: str) -> dict[str, Any]:
    """SkyPilot's catalogue CSV (InstanceType, vCPUs, MemoryGiB, AcceleratorName, AcceleratorCount, Price, SpotPrice,
    Region) as a price file; of several regions the cheapest is kept."""
    rows = list(csv.DictReader(io.StringIO(text)))
    needed = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
    missing = [name for name in needed if not rows or name not in rows[0]]
    if missing:
        raise ConfigError(f"{where} is not a catalogue of SkyPilot's: it has no column {', '.join(missing)}")
    instances: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = _skypilot_entry(row, dated)
        if entry is None:
            continue
        known = instances.get(row["InstanceType"])
        if known is None or entry.get("usd_per_hour", 1e9) < known.get("usd_per_hour", 1e9):
            instances[row["InstanceType"]] = entry
    if not instances:
        raise ConfigError(f"{where} has no machine with a card and a price")
    return {"dated": dated, "instances": instances}


def _skypilot_entry(row: Mapping[str, str], dated: str) -> dict[str, Any] | None:
    price, count = number(row.get("Price")), number(row.get("AcceleratorCount")) or 0.0
    if not row["InstanceType"] or not row["AcceleratorName"] or price is None or count < 1:
        return None
    told = {
        "gpu": card_name(row["AcceleratorName"]),
        "gpus": int(count),
        "usd_per_hour": price,
        "spot_usd_per_hour": number(row.get("SpotPrice")),
        "vcpus": number(row.get("vCPUs")),
        "memory_gib": number(row.get("MemoryGiB")),
        "region": row.get("Region") or "unknown",
        "as_of": dated,
    }
    return {name: value for name, value in told.items() if value is not None}


_CARD_NAMES = {
    "A100": "A100 40GB SXM4",
    "A100-80GB": "A100 80GB SXM4",
    "A100-80GB-SXM": "A100 80GB SXM4",
    "A6000": "RTX A6000",
    "GH200": "GH200 96GB",
    "H100": "H100 SXM5",
    "H100-SXM": "H100 SXM5",
    "H100-NVL": "H100 NVL",
    "H200": "H200 SXM",
    "H200-SXM": "H200 SXM",
    "P100": "P100 PCIe 16GB",
    "V100": "V100 16GB",
    "V100-32GB": "V100 32GB",
    "RTX3090": "RTX 3090",
    "RTX4090": "RTX 4090",
    "RTX5090": "RTX 5090",
    "RTX6000": "RTX 6000",
    "RTX6000-Ada": "RTX 6000 Ada",
    "RTXA4000": "RTX A4000",
    "RTXA5000": "RTX A5000",
    "RTXA6000": "RTX A6000",
}


def card_name(catalogue_name: str) -> str:
    """SkyPilot's name of a card as specs.csv has it."""
    return _CARD_NAMES.get(catalogue_name, catalogue_name)


def cheapest_first(machines: Iterable[Machine]) -> list[Machine]:
    return sorted(machines, key=lambda each: (each.usd_per_hour is None, each.usd_per_hour or 0.0, each.name))
