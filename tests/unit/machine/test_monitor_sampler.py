"""The monitor's thread: rows as they come, failures said once, a prompt end."""

import threading
import time
from typing import Any

from flatout.machine import Monitor
from training import wait_until


class Counting:
    """A reader that works, then fails, then works again."""

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        self.calls = 0
        self.intervals: list[float | None] = []
        self._fails = fails

    def describe(self) -> dict[str, Any]:
        return {"size": 7}

    def read(self, interval_seconds: float | None) -> dict[str, Any]:
        self.calls += 1
        self.intervals.append(interval_seconds)
        if self.calls in self._fails:
            raise OSError("gone")
        return {"count": self.calls}


def monitored(readers: dict[str, Any], rows: list[Any], notes: list[str], interval_seconds: float = 0.01) -> Monitor:
    return Monitor(readers, rows.append, notes.append, time.monotonic, interval_seconds)


def test_rows_come_at_once_and_at_every_interval() -> None:
    rows: list[Any] = []
    reader = Counting()
    monitor = monitored({"one": lambda: reader}, rows, [])
    monitor.start()
    wait_until(lambda: len(rows) >= 3, "three rows")
    monitor.stop()
    assert reader.intervals[0] is None
    assert all(interval > 0 for interval in reader.intervals[1:])
    assert [row["count"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    assert monitor.description == {"one": {"size": 7}}


def test_a_reader_that_fails_is_said_once_and_leaves_blanks_beside_the_others() -> None:
    rows: list[Any] = []
    notes: list[str] = []
    broken, sound = Counting(fails=(2, 3)), Counting()
    monitor = monitored({"broken": lambda: broken, "sound": lambda: Renamed(sound)}, rows, notes).start()
    wait_until(lambda: len(rows) >= 4, "four rows")
    monitor.stop()
    assert [row["count"] for row in rows[:4]] == [1, None, None, 4]
    assert [row["sound"] for row in rows[:4]] == [1, 2, 3, 4]
    assert notes == ["monitor: broken cannot be recorded (OSError: gone); training goes on"]


class Renamed:
    def __init__(self, inner: Counting) -> None:
        self._inner = inner

    def describe(self) -> dict[str, Any]:
        return {}

    def read(self, interval_seconds: float | None) -> dict[str, Any]:
        return {"sound": self._inner.read(interval_seconds)["count"]}


def test_a_reader_that_cannot_be_opened_is_said_and_left_out() -> None:
    rows: list[Any] = []
    notes: list[str] = []

    def refuse() -> Any:
        raise RuntimeError("no driver")

    monitor = monitored({"gpu": refuse, "one": Counting}, rows, notes).start()
    wait_until(lambda: len(rows) >= 2, "two rows")
    monitor.stop()
    assert notes == ["monitor: gpu cannot be recorded (RuntimeError: no driver); training goes on"]
    assert set(rows[0]) == {"seconds", "time_unix", "interval_seconds", "count"}


def test_a_full_disk_is_said_once_and_rows_go_on_when_there_is_room_again() -> None:
    rows: list[Any] = []
    notes: list[str] = []
    full = threading.Event()
    full.set()
    refused = []

    def write(row: Any) -> None:
        if full.is_set():
            refused.append(row)
            raise OSError(28, "No space left on device")
        rows.append(row)

    monitor = Monitor({"one": Counting}, write, notes.append, time.monotonic, 0.01).start()
    wait_until(lambda: len(refused) >= 2, "two rows that do not fit")
    full.clear()
    wait_until(lambda: rows, "a row that fits")
    monitor.stop()
    assert len(notes) == 1
    assert "system.csv" in notes[0]


def test_the_end_is_prompt_in_the_middle_of_a_long_interval_and_may_come_twice() -> None:
    rows: list[Any] = []
    monitor = monitored({"one": Counting}, rows, [], interval_seconds=3600).start()
    wait_until(lambda: rows, "the first row")
    monitor.stop()
    monitor.stop()
    assert not monitor._thread.is_alive()


def test_a_reader_that_hangs_does_not_hold_up_the_end() -> None:
    release, entered = threading.Event(), threading.Event()

    class Hanging(Counting):
        def read(self, interval_seconds: float | None) -> dict[str, Any]:
            entered.set()
            release.wait()
            return {}

    rows: list[Any] = []
    monitor = monitored({"one": Hanging}, rows, []).start()
    assert entered.wait(60)
    monitor.stop()
    assert rows == []
    release.set()
    monitor._thread.join(60)
    assert rows == [], "a row after the end, when the file may be closed"
