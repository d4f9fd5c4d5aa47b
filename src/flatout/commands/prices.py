"""Look at the machines and prices that plans use, and bring newer ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from flatout.cost.catalogue import load_catalogue, read_price_file
from flatout.cost.machines import OLD_DAYS, cheapest_first, days_old, load_machines, read_skypilot
from flatout.errors import ConfigError
from flatout.planning.cards import load_cards
from flatout.runs.directory import write_text
from flatout.untrusted import MAX_RECORD_BYTES, blamed_as, read_text


def machines_known(prices: Path | None) -> list[dict[str, Any]]:
    values = None if prices is None else read_price_file(prices)
    load_catalogue(prices)
    return [asdict(each) for each in cheapest_first(load_machines(values))]


def cards_known() -> list[dict[str, Any]]:
    return [asdict(each) for each in load_cards().values()]


def import_catalogue(path: Path, out: Path, today: date) -> dict[str, Any]:
    """SkyPilot's CSV as a price file of ours, to be named in cost.prices."""
    try:
        with blamed_as(ConfigError):
            text = read_text(path, MAX_RECORD_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give a CSV of SkyPilot's catalogue") from None
    values = read_skypilot(text, str(path), today.isoformat())
    write_text(out, yaml.safe_dump(values, sort_keys=True))
    load_catalogue(out)  # what we wrote loads
    unknown = sorted({entry["gpu"] for entry in values["instances"].values()} - set(load_cards()))
    return {"machines": len(values["instances"]), "written": str(out), "cards_unknown": unknown}


def machines_table(machines: Sequence[dict[str, Any]]) -> Table:
    names = ("machine", "cloud", "cards", "vCPUs", "memory", "on demand", "spot", "region", "as of")
    table = Table(*names, title="machines and dollars an hour", title_justify="left")
    today = date.today()
    for each in machines:
        days = days_old(each["as_of"], today)
        old = f" ({days} days)" if days is not None and days > OLD_DAYS else ""
        table.add_row(
            each["name"],
            each["cloud"],
            f"{each['gpus']} x {each['gpu']}",
            _known(each["vcpus"]),
            f"{_known(each['memory_gib'])} GiB",
            _known(each["usd_per_hour"]),
            _known(each["spot_usd_per_hour"]),
            each["region"],
            f"{each['as_of']}{old}",
        )
    return table


def cards_table(cards: Sequence[dict[str, Any]]) -> Table:
    names = ("card", "generation", "GB", "GB/s", "fp32 TFLOPS", "16-bit tensor TFLOPS", "watts")
    table = Table(*names, title="cards (vendors' figures)", title_justify="left")
    figures = ("memory_gb", "memory_gb_s", "fp32_tflops", "fp16_tensor_tflops", "watts")
    for each in cards:
        table.add_row(each["name"], each["architecture"], *(_known(each[figure]) for figure in figures))
    return table


def imported_text(told: dict[str, Any]) -> str:
    said = f"{told['machines']} machines in {told['written']}; use it with --set cost.prices={told['written']}"
    if told["cards_unknown"]:
        said += f"; no figures of {', '.join(told['cards_unknown'])}: no plan for machines with them"
    return said


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
