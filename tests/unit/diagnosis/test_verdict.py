"""Which of several findings becomes the verdict, and when there is none."""

import re

import pytest
from constructed import row, signals, steps
from test_rules import CASES

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signal_groups import Epoch, HostRow
from flatout.diagnosis.verdict import explain_signals, ranked


def test_a_healthy_run_gets_a_clean_bill() -> None:
    explained = explain_signals(signals())
    assert (explained.cause, explained.healthy) == ("compute", True)
    assert explained.findings == ()


def test_the_largest_saving_leads() -> None:
    explained = explain_signals(signals(workers=1, steps=steps(wait=0.2), parts={"checkpoint": 5.0}))
    assert explained.cause == "data-workers"
    assert [finding.id for finding in explained.findings] == ["few-workers", "checkpoint-time"]
    assert explained.findings[0].saved_seconds > explained.findings[1].saved_seconds


def test_a_wrong_result_comes_before_a_slow_one() -> None:
    mismatched = (Epoch(0, 2.0, 2.5, 0.1), Epoch(1, 1.0, 2.6, 0.1))
    explained = explain_signals(signals(workers=1, steps=steps(wait=0.2), epochs=mismatched))
    assert explained.cause == "labels"


def test_no_verdict_on_speed_when_time_has_no_owner() -> None:
    explained = explain_signals(signals(workers=1, steps=steps(wait=0.2), parts={"unattributed": 10.0}))
    assert explained.cause == "unexplained"
    assert "No verdict" in explained.verdict


def test_divergence_is_named_even_when_time_has_no_owner() -> None:
    diverged = tuple(row(0, n, 64, 0.1, 0.0, loss=2.0 * 1.05**n) for n in range(100))
    assert explain_signals(signals(steps=diverged, parts={"unattributed": 10.0})).cause == "diverged"


def test_no_verdict_from_a_handful_of_steps() -> None:
    explained = explain_signals(signals(steps=steps()[:3]))
    assert explained.cause == "unexplained"
    assert "3 steps" in explained.verdict


def test_a_small_saving_is_a_finding_but_no_verdict() -> None:
    explained = explain_signals(signals(parts={"validation": 1.2}))
    assert explained.healthy
    assert [finding.id for finding in explained.findings] == ["validation-time"]


def test_dollars_are_those_of_the_saved_seconds() -> None:
    finding = explain_signals(signals(parts={"checkpoint": 8.0}, usd_per_hour=3600.0)).findings[0]
    assert finding.usd == finding.saved_seconds


def test_a_slow_start_is_named_when_the_rest_is_healthy() -> None:
    assert explain_signals(signals(parts={"startup": 30.0})).cause == "startup"


def test_what_saves_most_of_this_run_leads_and_what_holds_back_a_longer_one_is_told() -> None:
    explained = explain_signals(signals(workers=1, steps=steps(wait=0.2), parts={"startup": 300.0}))
    assert explained.cause == "startup"
    assert "A longer run is held back by something else: Too few loader workers" in explained.verdict
    assert explain_signals(signals(workers=1, steps=steps(wait=0.2), parts={"startup": 20.0})).cause == "data-workers"


def test_cores_that_others_took_while_a_run_started_are_not_the_starts() -> None:
    taken = (HostRow(40.0, 1.0, 4.0, 4.0),)
    explained = explain_signals(signals(parts={"startup": 30.0}, core_wait={"startup": 26.0}, rows=taken))
    assert explained.cause == "host"
    assert "startup-time" not in [finding.id for finding in explained.findings]
    assert "A longer run" not in explained.verdict


WAITS = ("waits for data", "waits for gradients", "waits for cores")


@pytest.mark.parametrize("name", CASES)
def test_shares_have_one_denominator_and_no_finding_contradicts_the_ledger(name: str) -> None:
    """All shares of the run's time add up to 1, and no title claims more of it for waiting than the ledger has."""
    explained = explain_signals(CASES[name].found)
    assert sum(explained.shares.values()) == pytest.approx(1.0)
    ledger = {**explained.shares, "waits for cores": explained.shares.get("waits for a core that others have", 0.0)}
    for finding in explained.findings:
        claimed = [(int(share), what) for share, what in re.findall(r"(\d+) % of the run (\w+ \w+ \w+)", finding.title)]
        assert all(share <= 100 for share, _ in claimed)
        for share, what in claimed:
            if what in WAITS:
                assert share <= round(100 * ledger.get(what, 0.0)), finding.title


def test_parts_of_a_batch_are_no_busy_machine() -> None:
    """An emulated device waits its base for each part: that is the recipe's doing."""
    device = {"kind": "emulated", "emulated_base_seconds": 0.01, "emulated_seconds_per_sample": 0.001}
    explained = explain_signals(signals(steps=steps(own=0.15), accumulate=8, **device))
    assert [finding.id for finding in explained.findings] == ["many-parts"]


def test_what_takes_more_leads_even_where_its_fix_saves_a_part() -> None:
    explained = explain_signals(signals(parts={"copy": 5.0, "checkpoint": 5.5}))
    assert [finding.id for finding in explained.findings] == ["copy", "checkpoint-time"]
    assert explained.findings[0].saved_seconds < explained.findings[1].saved_seconds


def test_a_validation_that_is_long_by_its_tiny_batches_is_the_batchs() -> None:
    """Of 20 s of validation nine tenths are paid for each batch of 2: fewer validations would save half of them."""
    device = {"kind": "emulated", "emulated_base_seconds": 0.009, "emulated_seconds_per_sample": 0.0005}
    tiny = tuple(row(n // 50, n % 50, 2, 0.011, 0.0) for n in range(100))
    seen = signals(steps=tiny, batch_size=2, validations=2, epochs_planned=2, parts={"validation": 20.0}, **device)
    explained = explain_signals(seen)
    assert [finding.id for finding in explained.findings] == ["small-batch", "validation-time"]
    assert explained.findings[0].saved_seconds > 15


def test_a_slow_disk_without_workers_is_charged_with_its_reads_alone() -> None:
    """Of 0.3 s a batch 0.1 are read and 0.2 decoded, in the training thread: workers would hide all of it."""
    inline = signals(
        workers=0, steps=steps(own=0.3, wait=0.3), fetch_seconds=22.0, decode_seconds=38.0, augment_seconds=0.0
    )
    assert inline.step_with(0, fetch_factor=0.0) == pytest.approx(0.3 + 38.0 / 200)
    assert inline.step_with(1) == pytest.approx(0.3, rel=0.01)
    assert explain_signals(inline).cause == "data-workers"


def test_what_ended_a_run_comes_before_what_is_wrong_with_it_besides() -> None:
    ended = Finding("failed", "failed", "Rank 1 was killed", (), Fix("run it again"), urgent=True)
    grows = Finding("memory-growth", "memory", "Memory grows", (), Fix("find the leak"), urgent=True, cost_seconds=9.0)
    assert [finding.id for finding in ranked((grows, ended))] == ["failed", "memory-growth"]
