"""Cards by name: what vendors state of each. Dated, with sources, in specs.csv; replaceable by a file of that shape."""

from __future__ import annotations

import csv
import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path

from flatout.errors import ConfigError

_DETAIL = re.compile(r"\d+gb|sxm\d?|pcie|nvl")
_VARIANTS = {"ti", "super", "laptop", "max", "ada"}
_SAID_OTHERWISE = {"hbm3": "sxm5"}
"""Words of a driver for what specs.csv calls otherwise."""
_SPECS = Path(__file__).with_name("specs.csv")


@dataclass(frozen=True)
class Card:
    """One card. Rates are dense vendor peaks; None where the card has no such unit."""

    name: str
    architecture: str
    memory_gb: float
    memory_gb_s: float
    fp32_tflops: float
    fp16_tensor_tflops: float | None
    tf32_tflops: float | None
    bf16: bool
    pcie_gb_s: float
    nvlink_gb_s: float | None
    watts: float
    sure: bool
    note: str = ""

    @property
    def memory_bytes(self) -> float:
        """What is sold as 16 GB is 16 GiB of chips; the driver keeps a little."""
        return self.memory_gb * 2**30


@functools.cache
def load_cards(path: Path = _SPECS) -> dict[str, Card]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return {row["gpu"]: _card(row) for row in rows}


def _card(row: dict[str, str]) -> Card:
    def optional(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    return Card(
        row["gpu"],
        row["architecture"],
        float(row["memory_gb"]),
        float(row["memory_bandwidth_gb_s"]),
        float(row["fp32_tflops"]),
        optional("fp16_tensor_tflops"),
        optional("tf32_tflops"),
        row["bf16"] == "yes",
        float(row["pcie_gb_s"]),
        optional("nvlink_gb_s"),
        float(row["watts"]),
        row["sure"] == "yes",
        row["note"],
    )


def find_card(name: str) -> Card:
    """By its name in specs.csv, whatever its case; an unknown one is refused with the nearest."""
    cards = load_cards()
    by_case = {each.lower(): card for each, card in cards.items()}
    if name.lower() in by_case:
        return by_case[name.lower()]
    close = difflib.get_close_matches(name.lower(), list(by_case), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(by_case[each].name for each in close)}?" if close else ""
    raise ConfigError(f"no card is called {name!r}; {hint or 'flatout prices show --cards lists them'}")


def card_of_device(device: str) -> Card | None:
    """By the name a driver gives a device (`Tesla V100-SXM2-16GB`); None where no card of specs.csv is meant, or a
    variant of one (Ti, Laptop). Memory and slot decide between cards of one name."""
    words = _words(device)
    words |= {other for word, other in _SAID_OTHERWISE.items() if word in words}

    def details(card: Card) -> set[str]:
        return {word for word in _words(card.name) if _DETAIL.fullmatch(word)}

    def said(card: Card) -> tuple[int, int, int]:
        own = details(card)
        return len(_words(card.name) - own), len(own & words), -len(own - words)

    meant = [
        card
        for card in load_cards().values()
        if _words(card.name) - details(card) <= words and _words(card.name) & _VARIANTS == words & _VARIANTS
    ]
    return max(meant, key=said, default=None)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
