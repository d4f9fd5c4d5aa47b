"""Makes a run directory of what the recorded processes leave behind, while they run and when they have ended."""

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import yaml

from flatout.config.schema import CostConfig
from flatout.cost import load_catalogue, run_usage, usage_cost
from flatout.recording.files import FOLDER, Tail
from flatout.recording.launching import threads_spin
from flatout.recording.summing import describe_config, loading_totals, summarise, whole_parts
from flatout.recording.told import RankTold, RowTotals, take_rows, with_source
from flatout.recording.watching import Watch
from flatout.runs.directory import RunDirectory, write_json, write_text
from flatout.runs.steps import STEP_COLUMNS
from flatout.runs.summary import accuracy
from flatout.runs.tables import EPOCH_COLUMNS, Table, cell
from flatout.timeline import PARTS

_EVENTS = re.compile(r"(rank)?(\d+)\.jsonl")


class Collector:
    """The files of one recorded run. Whoever has the directory's lock has the collector."""

    def __init__(
        self, directory: RunDirectory, name: str, cost: CostConfig, command: list[str], environment: Mapping[str, Any]
    ) -> None:
        self._directory = directory
        self._name = name
        self._cost = cost
        self._command = command
        self._environment = dict(environment)
        self._began = time.perf_counter()
        self._began_unix = time.time()
        self._ended: float | None = None
        self._exit_seconds = 0.0
        self._epochs: list[dict[str, Any]] = []
        self._tails: dict[str, Tail] = {}
        self.ranks: dict[int, RankTold] = {}
        self._others: dict[int, RankTold] = {}  # by pid: processes that never trained
        self._steps = Table(directory.steps, STEP_COLUMNS)
        self._totals = RowTotals()
        self._config_text = ""
        self._watch = Watch(directory, lambda: time.perf_counter() - self._began)

    def begin(self) -> None:
        """The directory is a run from here on."""
        for folder in (self._directory.root / FOLDER, self._directory.spans):
            folder.mkdir(exist_ok=True)
        write_json(self._directory.environment, self._environment)
        self._write_config()
        self._watch.start()
        self.update()

    def mark_start(self) -> None:
        """The command starts now: what making the directory took is not its time."""
        self._began, self._began_unix = time.perf_counter(), time.time()

    def mark_end(self) -> None:
        """The command has ended; what follows is bookkeeping."""
        self._ended = time.perf_counter()

    def _wall_seconds(self) -> float:
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    def update(self) -> None:
        """Steps and a summary of now, for whoever looks while the script runs."""
        self.read()
        self._add_steps(ended=False)
        self._write_config()
        self._write_summary("running", None, self._parts_so_far())

    def end(self, status: str, cause: str | None) -> dict[str, Any]:
        """The last word; `cause` where the command knows it better than its processes."""
        self._watch.stop()
        self.read()
        self._add_steps(ended=True)
        self._write_config()
        # a script that ends takes its objects apart; one that was killed went on with what it did
        told_end = 0 in self.ranks and self.ranks[0].end is not None
        after = "other" if told_end else str(self.was_doing().get("part"))
        parts, self._exit_seconds = whole_parts(self._directory.root, 0, self._began_unix, self._wall_seconds(), after)
        self._write_epochs()
        summary = self._write_summary(status, cause, parts, loading_totals(self._directory.root))
        self._steps.close()
        self._watch.close()
        return summary

    def told_cause(self) -> str | None:
        """What the first process that died of an exception said; where a rank was killed, its launcher knows best."""
        for told in self._others.values():
            if told.end is not None and told.end.get("killed"):
                return str(told.end["cause"])
        for label, told in [*self._labelled("rank", self.ranks), *self._labelled("process", self._others)]:
            if told.end is not None and told.end.get("cause"):
                where = f" ({told.end['where']})" if told.end.get("where") else ""
                return f"{label if len(self.ranks) > 1 else ''}{told.end['cause']}{where}"
        return None

    def was_doing(self) -> dict[str, Any]:
        """The last sign of life of rank 0, or of whatever process left one; empty without, and where it said itself
        that it ended."""
        if 0 in self.ranks and self.ranks[0].end is not None:
            return {}
        folder = self._directory.root / FOLDER
        over = {f"{pid}.now" for pid, told in self._others.items() if told.end is not None}
        for path in [folder / "rank0.now", *sorted(folder.glob("*.now"))]:
            if path.name in over:
                continue
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text())
                if isinstance(found, dict):
                    return found
        return {}

    @property
    def steps(self) -> int:
        return self._totals.steps + (len(self.ranks[0].waiting) if 0 in self.ranks else 0)

    @staticmethod
    def _labelled(word: str, told: Mapping[int, RankTold]) -> list[tuple[str, RankTold]]:
        return [(f"{word} {number}: ", each) for number, each in sorted(told.items())]

    def read(self) -> None:
        """What the processes told since the last time."""
        for path in sorted((self._directory.root / FOLDER).glob("*.jsonl")):
            if (match := _EVENTS.fullmatch(path.name)) is None:
                continue
            home = self.ranks if match[1] else self._others
            for event in self._tails.setdefault(path.name, Tail(path)).read():
                home.setdefault(int(match[2]), RankTold()).add(event)

    def _in_order(self) -> list[RankTold]:
        """From rank 0 on, as far as there is no gap."""
        return [self.ranks[number] for number in range(len(self.ranks)) if number in self.ranks]

    def _add_steps(self, ended: bool) -> None:
        ranks = self._in_order()
        if not ended and ranks and (ranks[0].process.get("world_size") or 1) > len(ranks):
            return
        for row in take_rows(ranks, self._totals.steps, ended):
            self._steps.append(row)
            self._totals.add(row)

    def _write_config(self) -> None:
        cost = self._cost.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(describe_config(self._name, cost, self._in_order()), sort_keys=False)
        if text != self._config_text:
            write_text(self._directory.config, text)
            self._config_text = text
        process = self.ranks[0].process if 0 in self.ranks else {}
        if process and self._environment.get("torch") is None:
            told = {name: process.get(name) for name in ("torch", "python", "cuda")}
            device = {**(process.get("device") or {"kind": "cpu"})}
            device["name"] = device.get("name") or self._environment["cpu"]["name"]
            self._environment |= {**told, "device": device}
            write_json(self._directory.environment, self._environment)

    def _write_epochs(self) -> None:
        table = Table(self._directory.epochs, EPOCH_COLUMNS)
        self._epochs = self._totals.epoch_rows(self.ranks[0].logged if 0 in self.ranks else {})
        for row in self._epochs:
            table.append(row)
        table.close()

    def _parts_so_far(self) -> dict[str, float]:
        told = self.ranks[0].totals.get("parts") if 0 in self.ranks else None
        if told:
            return {name: told.get(name, 0.0) for name in PARTS}
        return {**dict.fromkeys(PARTS, 0.0), "startup": time.perf_counter() - self._began}

    def _write_summary(
        self, status: str, cause: str | None, parts: Mapping[str, float], loading: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        ranks = self._in_order()
        wall = self._wall_seconds() if status != "running" else sum(parts.values())
        recorded = {
            "command": self._command,
            "loader": ranks[0].training_loader if ranks else {},
            "lines": with_source(ranks[0].lines) if ranks else [],
            "exit_seconds": self._exit_seconds,
            "debugging": ranks[0].debugging if ranks else [],
            "threads_spin": threads_spin(),
            "missing": self._missing(),
            "last_seen": self.was_doing() if status == "failed" else {},
        }
        summary = summarise(self._name, status, cause, ranks, self._totals, parts, wall, recorded)
        summary["data"] |= loading or {}
        sections = self._watch.sections()
        summary["device_use"] |= {
            name: value for name, value in sections.pop("device_use").items() if value is not None
        }
        summary |= sections
        rows = [{name: cell(value) for name, value in row.items()} for row in self._epochs]
        by, higher = ("top1", True) if any(row.get("top1") for row in rows) else ("val_loss", False)
        summary["accuracy"] = accuracy(rows, by, higher)
        ledger = usage_cost(run_usage(wall, self._cost), self._cost, load_catalogue(self._cost.prices)).to_dict()
        summary["cost"] = ledger
        write_json(self._directory.cost, ledger)
        write_json(self._directory.summary, summary)
        return summary

    def _missing(self) -> list[str]:
        found = [each for told in self.ranks.values() for each in told.missing]
        for path in sorted((self._directory.root / FOLDER).glob("missing-*.txt")):
            with suppress(OSError):
                found.append(path.read_text().strip())
        if not self.ranks:
            found.append("no optimizer step was seen: nothing but the machine and the wall clock is known")
        return found
