"""Takes what loader workers wrote into the ledger of the process that they work for."""

import os
from typing import Any

from flatout.recording.files import FOLDER, Tail
from flatout.recording.ledger import ScriptLedger

STAGES = ("fetch", "decode", "augment", "collate")


class WorkerFiles:
    """Of all workers of this process, past and present."""

    def __init__(self, ledger: ScriptLedger) -> None:
        self._ledger = ledger
        self._folder = ledger.events.run / FOLDER
        self._prefix = f"fetch-{os.getpid()}-"
        self._tails: dict[str, Tail] = {}
        self._lines: dict[str, list[list[Any]]] = {}

    def drain(self) -> None:
        """New batches become lanes; each is given the step that its loader's next unassigned batch was fetched for."""
        found: list[tuple[float, int, str, dict[str, Any]]] = []
        for name in os.listdir(self._folder):
            if name.startswith(self._prefix):
                loader, worker = name.split("-")[2:4]
                for told in self._tails.setdefault(name, Tail(self._folder / name)).read():
                    if "lines" in told:
                        self._lines[name] = told["lines"]
                    elif "batch" in told:
                        batch = told["batch"]
                        end = batch["start"] + sum(batch.get(stage, 0.0) for stage in STAGES)
                        found.append((end, int(loader), f"worker{worker}", batch))
        for _, loader_number, lane, batch in sorted(found, key=lambda each: each[0]):
            self._add(loader_number, lane, batch)

    def lines(self) -> list[list[Any]]:
        """Of all workers together."""
        total: dict[tuple[Any, ...], int] = {}
        for rows in self._lines.values():
            for *key, samples in rows:
                total[tuple(key)] = total.get(tuple(key), 0) + samples
        return [[*key, samples] for key, samples in total.items()]

    def _add(self, number: int, lane: str, batch: dict[str, Any]) -> None:
        use = next((each for each in self._ledger.loaders.values() if each.number == number), None)
        step = use.step_of_next() if use is not None else None
        validating = step == -1 or (step is None and use is not None and not use.trained)
        start = batch["start"]
        for stage in STAGES:
            seconds = batch.get(stage, 0.0)
            name = f"val_{stage}" if validating else stage
            at = max(0, (self._ledger.book.done if step is None else step) - 1)
            self._ledger.recorder.lane(lane, name, start, seconds, at)
            start += seconds
