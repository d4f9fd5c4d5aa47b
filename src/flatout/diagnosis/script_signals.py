"""What is known of a recorded script beyond a run of flatout's own: its loader's settings and its hottest lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from flatout.untrusted import number

OWN_PARTS = ("other", "other_waits")
"""Of lines: the script's own code between loader, model and optimizer."""


@dataclass(frozen=True)
class HotLine:
    """A line of the script, and how often it was the innermost one of it."""

    part: str
    """Of the ledger; other_torch where torch's own Python ran inside a line of `other`, other_waits where that waited
    for another thread or process, beside for what other threads did meanwhile; loading in a worker."""
    file: str
    line: int
    function: str
    samples: float
    text: str = ""

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def shown(self) -> str:
        return f"{self.place} `{self.text[:60]}`" if self.text else f"{self.place} in {self.function}"


@dataclass(frozen=True)
class ScriptSignals:
    """Tuples are in the order of samples, most first."""

    loader: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[HotLine, ...] = ()
    exit_seconds: float = 0.0
    """Of `other`: after the script's last line."""
    debugging: tuple[str, ...] = ()
    """What of torch's help for finding mistakes was on while it trained."""
    threads_spin: bool = False
    """Compute threads that wait for each other keep their cores."""

    def hottest(self, *parts: str) -> HotLine | None:
        return next((line for line in self.lines if line.part in parts), None)

    def own_lines(self) -> list[HotLine]:
        """Each place once, though a comprehension in it is a function of its own; most first."""
        places = {(each.file, each.line): each for each in reversed(self.lines) if each.part in OWN_PARTS}
        return sorted(places.values(), key=lambda each: -self.share(each, *OWN_PARTS))

    def share(self, line: HotLine, *parts: str) -> float:
        """Of the samples in `parts`."""
        total = sum(each.samples for each in self.lines if each.part in parts)
        same = sum(
            each.samples
            for each in self.lines
            if each.part in parts and (each.file, each.line) == (line.file, line.line)
        )
        return same / total if total else 0.0

    @property
    def own_share(self) -> float:
        """Of `other`: what the script does itself, and not torch's functions inside one of its lines."""
        own, torch = (
            sum(each.samples for each in self.lines if each.part in parts) for parts in (OWN_PARTS, ("other_torch",))
        )
        return own / (own + torch) if own + torch else 1.0


def read_script(summary: Mapping[str, Any]) -> ScriptSignals | None:
    """Tolerant, as all readers of runs: what is not there or of another kind is left out."""
    recorded = summary.get("recorded")
    if not isinstance(recorded, Mapping):
        return None
    loader, rows = recorded.get("loader"), recorded.get("lines")
    lines = tuple(map(_line, (row for row in (rows if isinstance(rows, list) else []) if isinstance(row, Mapping))))
    return ScriptSignals(
        loader if isinstance(loader, Mapping) else {},
        tuple(sorted(lines, key=lambda line: -line.samples)),
        number(recorded.get("exit_seconds")) or 0.0,
        tuple(str(each) for each in on) if isinstance(on := recorded.get("debugging"), list) else (),
        recorded.get("threads_spin") is True,
    )


def _line(row: Mapping[str, Any]) -> HotLine:
    return HotLine(
        str(row.get("part")),
        str(row.get("file")),
        int(number(row.get("line")) or 0),
        str(row.get("function")),
        number(row.get("samples")) or 0.0,
        str(row.get("text") or ""),
    )
