"""The ledger by epoch adds up to the wall clock, and the estimate plus its differences to the actual epoch."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analysis.activity import BINS, Overview, read_activity
from flatout.analysis.epoch_ledger import DIFFERENCES, EpochLedger, account_steps, explain_difference
from flatout.runs.steps import StepRow
from flatout.timeline.reading import AttemptStart, SpanRow, read_attempts, read_spans


class SpanFile:
    """Writes what a recorder writes, with a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.step = path, 0.0, 0

    def start(self, attempt: int) -> None:
        self.now, self.step = 0.0, 0
        self.line({"attempt": attempt, "started_unix": 1000.0 * attempt})
        self.span("startup", 5.0)

    def line(self, values: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def span(self, name: str, seconds: float, gap: float = 0.0, inner: float = 0.0) -> None:
        self.now += gap
        if inner:
            at = self.now + (seconds - inner) / 2
            self.line({"name": "data_wait", "step": self.step, "start": at, "seconds": inner, "own": inner})
        self.line({"name": name, "step": self.step, "start": self.now, "seconds": seconds, "own": seconds - inner})
        self.now += seconds

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.span("data_wait", 0.5)
            self.step = step
            self.span("forward", 3.0 if step == first else 1.0, gap=0.01)
            self.span("backward", 2.0)

    def end_epoch(self) -> None:
        self.span("data_wait", 0.001)
        self.span("validation", 4.0)
        self.span("checkpoint", 1.0, gap=0.1)


def step_rows(steps: list[tuple[int, int, int]]) -> list[StepRow]:
    """Attempt, step, epoch; times as SpanFile makes them."""
    rows, seen = [], set()
    for attempt, step, epoch in steps:
        seconds = 3.51 if attempt in seen else 5.51
        seen.add(attempt)
        rows.append(StepRow(attempt, step, epoch, samples=8, step_seconds=seconds, data_wait_seconds=0.5))
    return rows


@pytest.fixture
def restarted(tmp_path: Path) -> tuple[Path, list[StepRow]]:
    """Two epochs of 4 steps; killed after step 6, begun again at step 5."""
    spans = SpanFile(tmp_path / "rank0.jsonl")
    spans.start(1)
    spans.steps(1, 4)
    spans.end_epoch()
    spans.steps(5, 6)
    with spans.path.open("a") as file:
        file.write('{"name":"forw\n')  # torn
    spans.start(2)
    spans.steps(5, 8)
    spans.end_epoch()
    rows = step_rows([(1, s, 0) for s in range(1, 5)] + [(2, s, 1) for s in range(5, 9)])
    return spans.path, rows


def test_parts_by_epoch_add_up_to_the_wall_clock(restarted: tuple[Path, list[StepRow]]) -> None:
    path, rows = restarted
    ledger = read_activity(path, rows).ledger
    attempts = read_attempts(path)
    whole = sum(sum(parts.values()) for parts in [ledger.startup, *ledger.epochs.values()])
    assert whole == pytest.approx(sum(each.wall_seconds for each in attempts))
    for name in attempts[0].parts:
        by_epoch = sum(parts.get(name, 0.0) for parts in [ledger.startup, *ledger.epochs.values()])
        assert by_epoch == pytest.approx(sum(each.parts[name] for each in attempts)), name
    assert ledger.startup == {"startup": 10.0, "unattributed": pytest.approx(0.0)}
    assert ledger.epochs[0]["data_wait"] == pytest.approx(4 * 0.5 + 0.001)
    assert ledger.epochs[1]["data_wait"] == pytest.approx(6 * 0.5 + 0.001)  # two steps were done twice
    assert ledger.epochs[0]["validation"] == 4.0


def test_a_span_inside_another_is_counted_once(tmp_path: Path) -> None:
    spans = SpanFile(tmp_path / "rank0.jsonl")
    spans.start(1)
    spans.steps(1, 1)
    spans.span("validation", 10.0, inner=4.0)
    ledger = read_activity(spans.path, step_rows([(1, 1, 0)])).ledger
    assert ledger.epochs[0]["validation"] == pytest.approx(6.0)
    assert ledger.epochs[0]["data_wait"] == pytest.approx(4.5)
    assert ledger.epochs[0]["unattributed"] == pytest.approx(0.01)
    assert sum(ledger.epochs[0].values()) + 5.0 == pytest.approx(spans.now)


def test_the_estimate_and_its_differences_are_the_actual_epoch(restarted: tuple[Path, list[StepRow]]) -> None:
    path, rows = restarted
    accounts = account_steps(rows, read_activity(path, rows).ledger, 8)
    for account in accounts:
        assert account.estimate + sum(getattr(account, name) for name in DIFFERENCES) == pytest.approx(account.actual)
    first, second = accounts
    assert first.batches == 4
    assert first.batch_seconds == pytest.approx(3.01)
    assert first.warm_up == pytest.approx(2.0)
    assert first.data_wait == pytest.approx(2.001)
    assert first.validation == 4.0
    assert first.checkpoint == 1.0
    assert first.other == pytest.approx(0.1)
    assert second.warm_up == pytest.approx(2.0)  # the first step after the restart
    text = explain_difference([first])
    assert text is not None
    assert text.startswith(
        "estimate 4 batches x 3.01 s = 12 s, actual 21.1 s (+76 %): validation +4 s, waiting for data +2 s"
    )
    assert explain_difference([]) is None


def ledger_of(rows: list[StepRow], **parts: float) -> EpochLedger:
    ledger = EpochLedger(rows)
    ledger.epochs[0] = parts
    return ledger


def test_a_short_last_batch_is_part_of_one() -> None:
    rows = step_rows([(1, s, 0) for s in range(1, 4)])
    rows[-1] = rows[-1]._replace(samples=4)
    (account,) = account_steps(rows, ledger_of(rows, forward=12.53), 8)
    assert account.batches == 2.5
    assert account.estimate == pytest.approx(2.5 * 3.01)


def test_an_epoch_over_two_attempts_says_so(restarted: tuple[Path, list[StepRow]]) -> None:
    path, rows = restarted
    first, second = account_steps(rows, read_activity(path, rows).ledger, 8)
    assert (first.restarted, second.restarted) == (False, True)
    assert second.other == pytest.approx(0.1 + 2 * 3.01 + 2.0)  # and what was lost with the kill


def test_lanes_and_readings_are_read_and_damage_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    lines = [
        '{"attempt":1,"started_unix":5.0}',
        '{"name":"startup","step":0,"start":0.0,"seconds":1.0,"own":1.0}',
        '{"lane":"loader 0","name":"fetch","step":1,"start":0.5,"seconds":0.25}',
        '{"lane":"queue","name":"depth","start":0.75,"value":3}',
        '{"name":"copy","step":9,"start":0.8,"seconds":0.1,"own":0.1,"count":12}',
        "[]", "7", '{"name":"forward"}', '{"name":"forward","step":1,"start":"x","seconds":1,"own":1}', '{"lane":"a","na',
        "\x00\x00",
    ]  # fmt: skip
    path.write_text("\n".join(lines))
    assert list(read_spans(path)) == [
        AttemptStart(1, 5.0),
        SpanRow("", "startup", 0, 0.0, 1.0, 1.0, None),
        SpanRow("loader 0", "fetch", 1, 0.5, 0.25, 0.25, None),
        SpanRow("queue", "depth", 0, 0.75, 0.0, 0.0, 3.0),
        SpanRow("", "copy", 9, 0.8, 0.1, 0.1, None, 12),
    ]
    activity = read_activity(path, [])
    assert activity.overview.lanes()["loader 0"][2] == pytest.approx(1.0)
    assert activity.overview.values() == {"queue depth": [(0.875, 3.0)]}
    assert list(read_spans(tmp_path / "none")) == []


def test_the_overview_keeps_sums_however_long_the_run() -> None:
    overview = Overview()
    for n in range(20_000):
        overview.add("", "forward", n * 1.0, 0.6, 0.6)
        overview.add("loader 0", "decode", n * 1.0, 0.25, 0.25)
        overview.read("queue depth", n * 1.0, n % 2)
    assert BINS / 2 <= overview.count <= 2 * BINS
    shares = overview.main_thread()
    assert all(sum(each.values()) == pytest.approx(1.0) for each in shares)
    total = sum(sum(bins.values()) for key, bins in overview.sums.items() if key == ("", "forward"))
    assert total == pytest.approx(12_000)
    assert shares[10]["forward"] == pytest.approx(0.6, abs=0.05)
    assert overview.lanes()["loader 0"][10] == pytest.approx(0.25, abs=0.05)
    assert all(
        value == pytest.approx(0.5, abs=0.05) for _, value in overview.values()["queue depth"] if value is not None
    )


def test_close_looks_hold_the_steps_they_name(restarted: tuple[Path, list[StepRow]]) -> None:
    path, rows = restarted
    with path.open("a") as file:
        file.write('{"lane":"loader 0","name":"decode","step":6,"start":6.0,"seconds":0.5}\n')
    activity = read_activity(path, rows)
    (look,) = activity.looks
    assert {row.step for row in look.rows if row.name == "forward"} == {1, 2, 3, 4}
    assert sum(row.name == "data_wait" for row in look.rows) == 5  # the last found the epoch at its end
    assert activity.attempts[0] == (1, 0.0)
    assert activity.attempts[1][0] == 2


def test_spans_that_no_clock_can_give_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_text(
        '{"name":"forward","step":1,"start":1,"seconds":1,"own":"1e999"}\n'
        '{"name":"forward","step":1,"start":-1,"seconds":1,"own":1}\n'
        '{"lane":"queue","name":"depth","start":1,"value":"nan"}\n'
    )
    assert list(read_spans(path)) == []
