"""The ledger of the main thread: every second has one owner, and a killed run keeps what it wrote."""

import json
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.timeline import PARTS, Recorder
from flatout.timeline.reading import read_attempts

some = settings(max_examples=30, deadline=None)  # a loaded machine is no failure


class Clock:
    """Stands in for time.perf_counter; moves only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def own(parts: dict[str, float]) -> dict[str, float]:
    return {name: seconds for name, seconds in parts.items() if seconds}


def test_inner_spans_are_taken_from_outer_ones(clock: Clock) -> None:
    recorder = Recorder(None)
    clock.now += 1
    with recorder.span("validation"):
        clock.now += 2
        with recorder.span("data_wait"):
            clock.now += 4
        with recorder.span("forward"):
            clock.now += 8
            with recorder.span("copy"):
                clock.now += 16
        clock.now += 32
    clock.now += 64
    assert own(recorder.totals()) == {
        "unattributed": 65, "validation": 34, "data_wait": 4, "forward": 8, "copy": 16,
    }  # fmt: skip
    assert sum(recorder.totals().values()) == recorder.wall_seconds() == 127


def test_totals_count_an_open_span_up_to_now(clock: Clock) -> None:
    recorder = Recorder(None)
    with recorder.span("forward"):
        clock.now += 3
        assert own(recorder.totals()) == {"forward": 3}
        clock.now += 2
    assert own(recorder.totals()) == {"forward": 5}


def test_a_span_ends_when_its_block_fails(clock: Clock) -> None:
    recorder = Recorder(None)
    with suppress(KeyError), recorder.span("forward"):
        clock.now += 3
        raise KeyError
    clock.now += 1
    assert own(recorder.totals()) == {"forward": 3, "unattributed": 1}


programs = st.recursive(
    st.floats(0, 10),
    lambda inner: st.tuples(st.sampled_from(["forward", "copy", "other", "validation"]), st.lists(inner, max_size=4)),
)


@some
@given(st.lists(programs, max_size=5))
def test_whatever_is_nested_the_parts_add_up_to_the_wall_clock(program: list[object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(time, "perf_counter", clock)
        recorder = Recorder(None)

        def run(steps: list[object]) -> None:
            for step in steps:
                if isinstance(step, tuple):
                    with recorder.span(step[0]):
                        run(step[1])
                else:
                    clock.now += step

        run(program)
        assert sum(recorder.totals().values()) == pytest.approx(recorder.wall_seconds())


def record(path: Path, attempt: int, clock: Clock) -> Recorder:
    """One attempt: 2 s of forward around 1 s of copy, twice, with 0.5 s between that nobody owns."""
    recorder = Recorder(path, attempt).open()
    recorder.end_startup()
    for step in (1, 2):
        recorder.step = step
        with recorder.span("forward"):
            clock.now += 2
            with recorder.span("copy"):
                clock.now += 1
        clock.now += 0.5
    return recorder


def test_the_file_tells_what_the_recorder_told(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "spans/rank0.jsonl"
    recorder = record(path, 1, clock)
    with recorder.span("validation"):
        with recorder.span("forward"):
            clock.now += 1
            with recorder.span("copy"):
                clock.now += 2
        clock.now += 4
    totals, wall = recorder.totals(), recorder.wall_seconds()
    recorder.close()
    (attempt,) = read_attempts(path)
    assert attempt.number == 1
    assert attempt.wall_seconds == pytest.approx(wall, abs=1e-5)
    assert set(attempt.parts) == set(PARTS)
    for name, seconds in attempt.parts.items():
        assert seconds == pytest.approx(totals[name], abs=1e-5), name


def test_startup_counts_from_the_start_of_the_process(tmp_path: Path, clock: Clock) -> None:
    recorder = Recorder(tmp_path / "rank0.jsonl").open()
    clock.now += 3
    recorder.end_startup()
    recorder.end_startup()
    clock.now += 1
    assert recorder.totals()["startup"] > 3  # this process began before the recorder
    assert sum(recorder.totals().values()) == pytest.approx(recorder.wall_seconds())
    recorder.close()


def test_attempts_follow_one_another_in_one_file(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "rank0.jsonl"
    for number in (1, 2, 3):
        record(path, number, clock).close()
    attempts = read_attempts(path)
    assert [each.number for each in attempts] == [1, 2, 3]
    assert [each.parts["forward"] for each in attempts] == [4, 4, 4]
    assert [each.parts["copy"] for each in attempts] == [2, 2, 2]
    assert all(sum(each.parts.values()) == pytest.approx(each.wall_seconds) for each in attempts)


def test_a_file_cut_anywhere_is_readable_and_the_next_attempt_is_whole(tmp_path: Path, clock: Clock) -> None:
    whole = tmp_path / "whole.jsonl"
    record(whole, 1, clock).close()
    data = whole.read_bytes()
    header = data.index(b"\n") + 1
    for length in range(header, len(data), 7):
        path = tmp_path / "torn.jsonl"
        path.write_bytes(data[:length])
        (torn,) = read_attempts(path)
        assert torn.number == 1
        finished = [line for line in data[:length].split(b"\n") if b'"copy"' in line and line.endswith(b"}")]
        assert torn.parts["copy"] == len(finished)
        assert sum(torn.parts.values()) == pytest.approx(torn.wall_seconds, abs=1e-4)
        record(path, 2, clock).close()
        first, second = read_attempts(path)
        assert first == torn
        assert (second.number, second.parts["forward"]) == (2, 4)


def test_spans_reach_the_file_while_the_run_goes_on(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "rank0.jsonl"
    recorder = record(path, 1, clock)  # more than a second passes on its clock
    (attempt,) = read_attempts(path)  # as after a kill -9: never closed
    assert attempt.parts["forward"] > 0
    recorder.close()


def test_each_line_names_its_step(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "rank0.jsonl"
    record(path, 1, clock).close()
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [(row["name"], row["step"]) for row in rows] == [
        ("startup", 0), ("copy", 1), ("forward", 1), ("copy", 2), ("forward", 2),
    ]  # fmt: skip


def test_no_file_means_no_attempts(tmp_path: Path) -> None:
    assert read_attempts(tmp_path / "none.jsonl") == []


class DeviceClock:
    """Counts seconds by name; the device is done when asked."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.answer: dict[str, float] = {}

    def mark(self, name: str) -> None:
        self.marks.append(name)

    def shares(self) -> dict[str, float]:
        return self.answer


def test_a_wait_for_the_device_belongs_to_the_work_it_did(clock: Clock, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank0.jsonl").open(started=clock.now)
    recorder.end_startup()
    recorder.device_clock = device = DeviceClock()
    for name in ("copy", "forward", "backward"):
        with recorder.span(name):
            clock.now += 0.5
    device.answer = {"idle": 100.0, "forward": 2.0, "backward": 6.0}
    with recorder.device_wait():
        clock.now += 4
    assert device.marks == ["idle", "copy", "forward", "backward"]
    assert own(recorder.totals()) == {"copy": 0.5, "forward": 1.5, "backward": 3.5}
    assert recorder.device_seconds == {"idle": 100.0, "forward": 2.0, "backward": 6.0}
    recorder.close()
    (attempt,) = read_attempts(tmp_path / "rank0.jsonl")
    assert own(attempt.parts) == pytest.approx({"copy": 0.5, "forward": 1.5, "backward": 3.5})


@pytest.mark.parametrize("span", ["forward", "device_wait"])
def test_an_error_of_the_device_is_not_hidden_by_its_events(clock: Clock, span: str) -> None:
    class Broken(DeviceClock):
        def mark(self, name: str) -> None:
            raise RuntimeError("the event's own error")

        def shares(self) -> dict[str, float]:
            raise RuntimeError("an event was never recorded")

    recorder = Recorder(None)
    recorder.device_clock = Broken()

    def fail() -> None:
        with recorder.span(span):
            clock.now += 4
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert own(recorder.totals()) == {"optimizer" if span == "device_wait" else span: 4}


def test_without_a_device_clock_the_wait_is_the_optimizers(clock: Clock) -> None:
    recorder = Recorder(None)
    with recorder.device_wait():
        clock.now += 4
    assert own(recorder.totals()) == {"optimizer": 4}


def test_lanes_are_kept_beside_the_ledger(clock: Clock, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank0.jsonl").open(started=clock.now)
    recorder.end_startup()
    recorder.step = 7
    with recorder.span("forward"):
        clock.now += 2
        recorder.lane("worker 0", "decode", clock.now - 1.5, 1.25)
        recorder.value("queue", "depth", 3)
    recorder.close()
    rows = [json.loads(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    lanes = [row for row in rows if "lane" in row]
    assert lanes == [
        {"lane": "worker 0", "name": "decode", "step": 7, "start": 0.5, "seconds": 1.25},
        {"lane": "queue", "name": "depth", "start": 2.0, "value": 3},
    ]
    assert own(read_attempts(tmp_path / "rank0.jsonl")[0].parts) == {"forward": 2}


def test_a_long_run_sums_up_short_spans_and_keeps_its_ledger(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.timeline.recorder._DETAILED_LINES", 10)
    recorder = Recorder(tmp_path / "rank0.jsonl").open(started=clock.now)
    recorder.end_startup()
    for step in range(1000):
        with recorder.span("forward"):
            clock.now += 1 / 64
        with recorder.span("checkpoint" if step % 100 == 0 else "backward"):
            clock.now += 0.25 if step % 100 == 0 else 1 / 32
    totals = recorder.totals()
    recorder.close()
    (attempt,) = read_attempts(tmp_path / "rank0.jsonl")
    assert attempt.parts == pytest.approx(totals)
    lines = (tmp_path / "rank0.jsonl").read_text().splitlines()
    assert len(lines) < 300
    assert sum('"checkpoint"' in line for line in lines) == 10


def test_damaged_spans_give_no_part_less_than_nothing(tmp_path: Path) -> None:
    start = '{"attempt": 1, "started_unix": 5.0}\n'
    span = '{"name": "forward", "start": 1.0, "seconds": 2.0, "own": -7.0}\n'
    (tmp_path / "rank0.jsonl").write_text(start + span)
    (attempt,) = read_attempts(tmp_path / "rank0.jsonl")
    assert attempt.parts["forward"] == 0.0
