"""Dated prices: the shipped catalogue, a user's file on top of it, and one price with its date and source."""

import difflib
import functools
import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from flatout.cost.machines import load_machines
from flatout.errors import ConfigError
from flatout.untrusted import blamed_as, read_yaml

DEFAULT_REGION = "us-east-1"
_SHIPPED = Path(__file__).with_name("prices.yaml")
_INSTANCE_FIGURES = ("usd_per_hour", "spot_usd_per_hour", "network_gbps", "gpus", "vcpus", "memory_gib")
_INSTANCE_TEXTS = ("gpu", "cloud", "local_disk")
"""What a price file may say of a machine that is no number (cost/machines.py reads it)."""
Key = tuple[str, str, str, str]
"""Region, section, name, figure."""


@dataclass(frozen=True)
class Price:
    """One figure of the catalogue, when it was true, and the file that says so."""

    value: float
    as_of: str
    source: str


@dataclass(frozen=True)
class Catalogue:
    """Every known price. `dated` is the date of the newest file it was read from: the user's, else the shipped one."""

    dated: str
    figures: Mapping[Key, Price]

    def find(self, section: str, name: str, figure: str, region: str = DEFAULT_REGION) -> Price | None:
        return self.figures.get((region, section, name, figure))

    def hourly_usd(self, instance: str, spot: bool, region: str = DEFAULT_REGION) -> Price:
        """Price of one machine for one hour; one that is not known is the user's to give."""
        figure = "spot_usd_per_hour" if spot else "usd_per_hour"
        price = self.find("instances", instance, figure, region)
        if price is not None:
            return price
        known = sorted({name for where, section, name, _ in self.figures if (where, section) == (region, "instances")})
        other = f"set cost.usd_per_hour in place of cost.instance, or give instances.{instance}.{figure} in cost.prices"
        machine = next((each for each in load_machines() if (each.name, each.region) == (instance, region)), None)
        listed = machine.hourly_usd(spot) if machine is not None and instance not in known else None
        if machine is not None and listed is not None:
            return Price(listed, machine.as_of, "instances.csv shipped with flatout")
        if instance in known or machine is not None:
            kind = "spot" if spot else "on-demand"
            raise ConfigError(f"no {kind} price is known for {instance} in {region}; {other}")
        close = difflib.get_close_matches(instance, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known there: {', '.join(known) or 'none'};"
        raise ConfigError(f"no price is known for instance {instance!r} in {region}; {hint} otherwise {other}")


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The shipped prices, replaced and extended by those in the user's file."""
    shipped = _shipped()
    if path is None:
        return shipped
    values = read_price_file(path)
    own = dict(_figures(values, path, str(path)))
    for _, section, name, figure in own:
        _check_known(path, section, name, figure, shipped.figures)
    return Catalogue(str(values["dated"]), {**shipped.figures, **own})


@functools.cache
def _shipped() -> Catalogue:
    """Once per process: reading it takes 25 ms, and a run asks at its start and at the end of every epoch."""
    values = read_price_file(_SHIPPED)
    return Catalogue(str(values["dated"]), dict(_figures(values, _SHIPPED, "prices.yaml shipped with flatout")))


def read_price_file(path: Path) -> dict[str, Any]:
    """Its keys as they stand, checked to be a dated mapping."""
    try:
        with blamed_as(ConfigError):
            values = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"cannot read the price file {path}: {error.strerror}; correct cost.prices") from None
    if not isinstance(values, dict):
        raise ConfigError(f"price file {path} holds no keys; start it with: dated: 2026-09")
    if not _is_date(values.get("dated")):
        raise ConfigError(
            f"price file {path}: dated is {reprlib.repr(values.get('dated'))}; "
            "say when the prices were seen, for example dated: 2026-09"
        )
    return values


def _figures(values: Mapping[str, Any], path: Path, source: str) -> Iterator[tuple[Key, Price]]:
    """Every number of the file; an entry without as_of or region takes the file's."""
    for section in (key for key in values if key not in ("dated", "region")):
        for name, entry in _mapping(values[section], path, str(section)).items():
            where = f"{section}.{name}"
            numbers = dict(_mapping(entry, path, where))
            as_of = numbers.pop("as_of", values["dated"])
            region = numbers.pop("region", values.get("region", DEFAULT_REGION))
            if not _is_date(as_of):
                raise ConfigError(
                    f"price file {path}: {where}.as_of is {reprlib.repr(as_of)}; write a date like 2026-09"
                )
            if section == "instances":
                numbers = {figure: number for figure, number in numbers.items() if figure not in _INSTANCE_TEXTS}
            for figure, number in numbers.items():
                price = Price(_checked_price(number, path, f"{where}.{figure}"), str(as_of), source)
                yield (str(region), str(section), str(name), str(figure)), price


def _mapping(value: Any, path: Path, key: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ConfigError(
            f"price file {path}: {key} is {reprlib.repr(value)}; write keys under it, "
            "for example instances: {g5.xlarge: {usd_per_hour: 1.006}}"
        )
    return value


def _checked_price(value: Any, path: Path, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"price file {path}: {key} is {reprlib.repr(value)}; write a number such as 0.526")
    return float(value)


def _is_date(value: Any) -> bool:
    return isinstance(value, str | int | date) and not isinstance(value, bool) and bool(str(value).strip())


def _check_known(path: Path, section: str, name: str, figure: str, shipped: Mapping[Key, Price]) -> None:
    """A key that the ledger never reads is a typo; only instances may have new names."""
    known = [f"{key[1]}.{key[2]}.{key[3]}" for key in shipped if key[1] != "instances"]
    known += [f"instances.{name}.{each}" for each in _INSTANCE_FIGURES]
    key = f"{section}.{name}.{figure}"
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        advice = f"did you mean {close[0]}?" if close else "remove it; the shipped prices.yaml shows every key"
        raise ConfigError(f"price file {path}: nothing uses {key}; {advice}")
