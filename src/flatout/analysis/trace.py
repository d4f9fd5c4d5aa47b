"""A run in the Chrome trace format: opens in Perfetto (ui.perfetto.dev) and chrome://tracing."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.runs.directory import RunDirectory
from flatout.runs.reading import Run
from flatout.runs.system import SYSTEM_COLUMNS
from flatout.timeline.reading import AttemptStart, read_spans
from flatout.untrusted import number

_MAIN = "main thread"
Event = dict[str, Any]


def write_trace(run: Run, path: Path) -> int:
    """Event by event, so that a run of any length fits in memory; the whole new file or the whole old one. Returns the
    number of events."""
    temporary, count = path.with_name(f".{path.name}.tmp"), 0
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for event in trace_events(run):
                file.write(f"{',' if count else ''}\n{json.dumps(event, separators=(',', ':'))}")
                count += 1
            file.write("\n]}\n")
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    return count


def trace_events(run: Run) -> Iterator[Event]:
    """One process per rank with its lanes as threads, and the machine's readings as counters."""
    files = sorted(RunDirectory(run.directory).spans.glob("rank*.jsonl"), key=lambda path: (len(path.name), path.name))
    origin = min((row.started_unix for path in files if (row := _first_start(path))), default=0.0)
    for process, path in enumerate(files):
        yield _name("process_name", process, 0, f"{run.name} {path.stem.replace('rank', 'rank ')}")
        yield from _rank_events(process, path, origin)
    yield from _counters(len(files), run.system, origin)


def _first_start(path: Path) -> AttemptStart | None:
    return next((row for row in read_spans(path) if isinstance(row, AttemptStart)), None)


def _rank_events(process: int, path: Path, origin: float) -> Iterator[Event]:
    threads: dict[str, int] = {}
    offset = 0.0
    for row in read_spans(path):
        if isinstance(row, AttemptStart):
            offset = row.started_unix - origin
            yield {
                "name": f"attempt {row.attempt}",
                "ph": "i",
                "s": "p",
                "pid": process,
                "tid": 0,
                "ts": _micro(offset),
            }
            continue
        at = _micro(offset + row.start)
        if row.value is not None:
            yield {"name": f"{row.lane} {row.name}", "ph": "C", "pid": process, "ts": at, "args": {row.name: row.value}}
            continue
        # sums of short spans overlap each other, and a viewer drops what overlaps: a thread for each name
        lane = row.lane or (_MAIN if row.spans == 1 else f"{_MAIN}: {row.name}, summed up each second")
        if lane not in threads:
            threads[lane] = len(threads)
            yield _name("thread_name", process, threads[lane], lane)
        yield {
            "name": row.name,
            "cat": "lane" if row.lane else "main",
            "ph": "X",
            "pid": process,
            "tid": threads[lane],
            "ts": at,
            "dur": _micro(row.seconds),
            "args": {"step": row.step, "spans": row.spans},
        }


def _counters(process: int, system: Sequence[Mapping[str, str]], origin: float) -> Iterator[Event]:
    if not system:
        return
    yield _name("process_name", process, 0, "machine")
    for row in system:
        time_unix = number(row.get("time_unix"))
        for column, cell in row.items() if time_unix is not None else ():
            value = number(cell)  # a blank or a word is no reading
            if value is not None and column not in SYSTEM_COLUMNS:
                at = _micro(max(0.0, (time_unix or 0.0) - origin))
                yield {"name": column, "ph": "C", "pid": process, "ts": at, "args": {"value": value}}


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 3)
