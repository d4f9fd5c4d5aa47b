"""What one process tells of its run: events and steps, as lines of a file that the collector reads."""

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flatout.recording.files import FOLDER, append_lines, claim_rank, event
from flatout.recording.steps import RecordedStep

_MOST_HELD = 50_000  # lines of a process that does not train, before it stops keeping them


class Telling:
    """Kept until the process trains, then written now and then. Any thread may tell something."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.rank: int | None = None
        self.attempt = 1
        self.told_rank: Callable[[], int | None] = lambda: None
        self.on_claim: Callable[[], dict[str, Any]] = dict
        """What the process says of itself once it trains."""
        self._waiting: deque[str | RecordedStep] = deque()  # steps become text when they are written
        self._writing = threading.Lock()

    def tell(self, kind: str, value: Any) -> None:
        if self.rank is not None or len(self._waiting) < _MOST_HELD:
            self._waiting.append(event(kind, value))

    def missing(self, what: str) -> None:
        self.tell("missing", what)

    def tell_step(self, step: RecordedStep) -> None:
        self._waiting.append(step)

    def write(self) -> None:
        """Hand over what was told so far; nothing where another thread does so just now."""
        if self.rank is None or not self._waiting or not self._writing.acquire(blocking=False):
            return
        try:
            append_lines(self.run / FOLDER / f"rank{self.rank}.jsonl", self._take_lines())
        finally:
            self._writing.release()

    def write_unranked(self, ended: dict[str, Any]) -> None:
        """Of a process that ends without having trained."""
        self._waiting.append(event("end", ended))
        append_lines(self.run / FOLDER / f"{os.getpid()}.jsonl", self._take_lines())

    def claim(self) -> bool:
        """This process trains; whether its rank is free. Where another one has it, the run's files say so."""
        claimed = claim_rank(self.run, self.told_rank())
        if claimed is None:
            told = f"process {os.getpid()} trains beside rank 0, outside of a process group: only rank 0 is recorded\n"
            (self.run / FOLDER / f"missing-{os.getpid()}.txt").write_text(told)
            return False
        self.rank, self.attempt = claimed
        self._waiting.appendleft(event("process", {"attempt": self.attempt, "pid": os.getpid(), **self.on_claim()}))
        self.write()
        return True

    def _take_lines(self) -> list[str]:
        told = [self._waiting.popleft() for _ in range(len(self._waiting))]
        origin_unix = time.time() - time.perf_counter()
        return [each if isinstance(each, str) else self._step_line(each, origin_unix) for each in told]

    def _step_line(self, step: RecordedStep, origin_unix: float) -> str:
        """One of `event`; written out because it is told of every step."""
        work = step.work
        return (
            f'{{"step": {{"attempt": {self.attempt}, "epoch": {step.epoch}, "batch_index": {step.batch_index}, '
            f'"samples": {work.samples}, "loss": {_as_json(work.loss)}, '
            f'"learning_rate": {_as_json(step.learning_rate)}, "step_seconds": {step.seconds:.7f}, '
            f'"data_wait_seconds": {work.wait_seconds:.7f}, "time_unix": {origin_unix + step.end:.3f}, '
            f'"microbatches": {work.fetches or work.backwards}}}}}\n'
        )


def _as_json(value: float | None) -> str:
    if value is None:
        return "null"
    return float.__repr__(float(value)) if math.isfinite(value) else json.dumps(float(value))
