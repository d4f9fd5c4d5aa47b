"""The real reports of SCENARIOS.md, recomputed: what the model would have said before the money was spent."""

import pytest

from flatout.cost import CostLine, Ledger, Usage
from flatout.diagnosis.model.communication import (
    Link,
    even_buckets,
    explaining_bytes_per_second,
    exposed_seconds,
    ring_bytes,
    round_cap,
)
from flatout.diagnosis.model.device import fit_device_time
from flatout.diagnosis.model.interval import Interval
from flatout.diagnosis.model.run import break_even_epochs, run_usd

MB_PER_SECOND, GB = 1e6, 1e9


class TestStoryB:
    """Transformer-base (60.5 million fp32 gradients) on 2 machines x 2 GPUs, network flat at 12,500 KB/s."""

    gradient_bytes = 60.5e6 * 4
    device_seconds = 1.5
    buckets = even_buckets(60.5e6 * 4, 0.5, 1.0)

    def step_at(self, bytes_per_second: float) -> float:
        exposed = exposed_seconds(self.buckets, 4, Link(bytes_per_second), self.device_seconds)
        return self.device_seconds + exposed

    def test_a_100_megabit_port_explains_the_30_second_step(self) -> None:
        assert self.step_at(12.5 * MB_PER_SECOND) == pytest.approx(30.0, rel=0.05)

    def test_nothing_but_that_port_explains_it(self) -> None:
        explains = 8 * explaining_bytes_per_second(self.buckets, 4, 30.0)
        assert round_cap(explains) == 100e6

    def test_the_wire_was_full_all_the_time(self) -> None:
        assert ring_bytes(self.gradient_bytes, 4) / 30.0 == pytest.approx(12.5 * MB_PER_SECOND, rel=0.05)

    def test_raising_the_port_gives_back_the_1_8_second_step(self) -> None:
        assert self.step_at(1250 * MB_PER_SECOND) < 1.8 < self.step_at(125 * MB_PER_SECOND)


class TestStoryD:
    """S3 mount against NVMe: 457 s, 138 s, then 122.5 s per epoch against 67 s and a copy of 28 minutes."""

    def test_staging_pays_in_dollars_from_epoch_13(self) -> None:
        """docs/cost.md: 0.0616 against 0.0226 for a further epoch, and ten epochs 0.7293 against 0.8083."""
        first_two = 0.7293 - 8 * 0.0616
        copy = 0.8083 - 10 * 0.0226
        assert break_even_epochs(first_two - 0.0616, 0.0616, 0.0226, copy) == 13

    def test_a_copy_that_is_as_fast_as_the_first_epoch_pays_at_once(self) -> None:
        assert break_even_epochs(457, 122.5, 67, 300) == 1

    def test_a_store_as_fast_as_the_disk_never_repays_the_copy(self) -> None:
        assert break_even_epochs(457, 67, 67, 1) is None


def test_story_a_hours_become_dollars_by_the_ledger() -> None:
    def price(usage: Usage) -> Ledger:
        usd = usage.training_seconds / 3600 * 0.526
        return Ledger((CostLine("training nodes", usage.training_seconds / 3600, "hours", 0.526, usd),), "2026-08")

    usd = run_usd(Interval(3600, 1800, 7200), lambda seconds: Usage(training_seconds=seconds), price)
    assert usd == Interval(0.526, 0.263, 1.052)


def test_device_time_of_two_batches_predicts_a_third() -> None:
    device = fit_device_time([(128, 0.010 + 128 * 0.0002), (256, 0.010 + 256 * 0.0002)])
    assert device.step_seconds(512) == pytest.approx(0.010 + 512 * 0.0002)


def test_a_fit_never_gives_a_negative_base() -> None:
    device = fit_device_time([(128, 0.1), (256, 0.3)])
    assert device.base_seconds >= 0
