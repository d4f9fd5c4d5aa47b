"""Every rule with a run that must be found and one, a little different, that must not."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from constructed import row, signals, steps

from flatout.analysis.rank_spans import BatchLoad
from flatout.diagnosis.finding import CAUSES, Finding
from flatout.diagnosis.rules import (
    RULES,
    augment_bound,
    bursty_loading,
    busy_host,
    checkpoint_time,
    cold_epoch,
    cold_producers,
    copy_time,
    crowded,
    decode_bound,
    disk_cap,
    epoch_start,
    exposed_communication,
    failed,
    few_workers,
    host_time,
    hot_clock,
    learning,
    memory_full,
    memory_growth,
    memory_headroom,
    needless_checkpointing,
    no_workers,
    optimizer_time,
    port_speed,
    prediction_off,
    retries,
    slow_fetch,
    small_batch,
    small_shared_cache,
    spot_price,
    startup_time,
    starved_producers,
    straggler,
    throttling,
    too_many_nodes,
    unattributed,
    validation_time,
)
from flatout.diagnosis.signal_groups import Epoch, HostRow, RankSignals, SharedBatches, StoreRequests
from flatout.diagnosis.signals import Signals

STARVED = steps(own=0.1, wait=0.2)
BATCHES = len(STARVED)
SECOND_BY_SECOND = tuple(float(second) for second in range(40))


def ranks(**changes: object) -> RankSignals:
    values: dict[str, object] = {"world_size": 4, "nodes": 2, "communication_seconds": 0.05, "gradient_bytes": 100e6}
    return RankSignals(**{**values, **changes})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    rule: Callable[[Signals], Finding | None]
    cause: str | None
    found: Signals
    not_found: Signals


CASES = {
    "1 no workers": Case(
        no_workers.find, "data-workers", signals(workers=0, steps=steps(wait=0.26)), signals(workers=0, steps=steps(wait=0.001))
    ),
    "2 few workers": Case(
        few_workers.find, "data-workers", signals(workers=1, steps=STARVED), signals(workers=8, steps=STARVED)
    ),
    "2 shallow prefetch": Case(
        few_workers.find,
        "data-workers",
        signals(workers=8, prefetch=1, steps=STARVED),
        signals(workers=8, prefetch=16, steps=STARVED),
    ),
    "3 decode-bound": Case(
        decode_bound.find,
        "data-decode",
        signals(workers=8, steps=STARVED, decode_seconds=2.4 * BATCHES),
        signals(workers=1, steps=STARVED),
    ),
    "3 augment-bound": Case(
        augment_bound.find,
        "data-augment",
        signals(workers=8, steps=STARVED, decode_seconds=0.1 * BATCHES, augment_seconds=2.3 * BATCHES),
        signals(workers=8, steps=STARVED, decode_seconds=2.4 * BATCHES),
    ),
    "3 augment-bound, together with decoding": Case(
        augment_bound.find,
        "data-augment",
        signals(workers=8, steps=STARVED, decode_seconds=0.9 * BATCHES, fetch_seconds=0.5 * BATCHES, augment_seconds=1.1 * BATCHES),
        signals(workers=8, steps=STARVED, decode_seconds=0.5 * BATCHES, fetch_seconds=1.0 * BATCHES, augment_seconds=0.6 * BATCHES),
    ),
    "3 augment-bound, by Python's lock": Case(
        augment_bound.find,
        "data-augment",
        signals(workers=1, augment_seconds=0.9 * BATCHES, decode_seconds=0.01 * BATCHES, python_augment=True),
        signals(workers=1, augment_seconds=0.9 * BATCHES, decode_seconds=0.01 * BATCHES),  # in C, outside the lock
    ),
    "4 slow fetch": Case(
        slow_fetch.find, "data-fetch", signals(steps=STARVED, fetch_seconds=1.2 * BATCHES), signals(steps=STARVED)
    ),
    "6 cold epoch": Case(
        cold_epoch.find, "data-decode", signals(steps=steps(first_epoch_wait=0.3)), signals(steps=steps(first_epoch_wait=0.01))
    ),
    "8 disk cap": Case(
        disk_cap.find,
        "data-fetch",
        signals(steps=STARVED, disk_busy_share=(0.97, 1.0), disk_read_bytes_per_second=(125e6, 125e6)),
        signals(steps=STARVED, disk_busy_share=(0.3, 0.4)),
    ),
    "9 throttling": Case(
        throttling.find,
        "data-fetch",
        signals(steps=STARVED, remote=True, store=StoreRequests(1000, 200, 200)),
        signals(steps=STARVED, remote=True, store=StoreRequests(1000, 2, 2)),
    ),
    "10 bursty loading": Case(
        bursty_loading.find,
        "data-workers",
        signals(steps=steps(wait=0.05), loads=tuple(BatchLoad(n, 0, 3.0 if n % 20 == 0 else 0.1) for n in range(BATCHES))),
        signals(steps=steps(wait=0.05), loads=tuple(BatchLoad(n, 0, 0.25) for n in range(BATCHES))),
    ),
    "11 epoch start": Case(epoch_start.find, "epoch-start", signals(steps=steps(gap=2.0)), signals(steps=steps(gap=0.2))),
    "12 retries": Case(
        retries.find,
        "data-fetch",
        signals(steps=STARVED, remote=True, store=StoreRequests(1000, 100, 0)),
        signals(steps=STARVED, remote=True, store=StoreRequests(1000, 10, 0)),
    ),
    "12 cold producers": Case(
        cold_producers.find,
        "data-fetch",
        signals(steps=STARVED, shared=SharedBatches(BATCHES, made=BATCHES, cold_starts=BATCHES // 8)),
        signals(steps=STARVED, shared=SharedBatches(BATCHES, made=BATCHES, cold_starts=4)),
    ),
    "starved producers": Case(
        starved_producers.find,
        "data-workers",
        signals(steps=STARVED, shared=SharedBatches(BATCHES, answers=100, busy_answers=95, made=BATCHES)),
        signals(steps=STARVED, shared=SharedBatches(BATCHES, answers=100, busy_answers=40, made=BATCHES)),
    ),
    "small shared cache": Case(
        small_shared_cache.find,
        "memory",
        signals(steps=STARVED, shared=SharedBatches(BATCHES, local=60, made=BATCHES, evicted_needed=60)),
        signals(steps=STARVED, shared=SharedBatches(BATCHES, made=BATCHES, evicted_needed=1)),
    ),
    "13 copy": Case(copy_time.find, "copy", signals(parts={"copy": 5.0}), signals(parts={"copy": 0.2})),
    "15 small batch": Case(
        small_batch.find, "host", signals(batch_size=4, parts={"optimizer": 9.0}), signals(parts={"optimizer": 9.0})
    ),
    "15 many parts": Case(
        small_batch.find,
        "host",
        signals(accumulate=8, device_kind="emulated", emulated_base_seconds=0.005, emulated_seconds_per_sample=0.001),
        signals(accumulate=8, device_kind="emulated", emulated_base_seconds=0.0001, emulated_seconds_per_sample=0.001),
    ),
    "16 host time": Case(host_time.find, "host", signals(parts={"other": 6.0}), signals(parts={"other": 0.2})),
    "16 optimizer": Case(
        optimizer_time.find, "compute", signals(parts={"optimizer": 12.0}), signals(parts={"optimizer": 2.0})
    ),
    "16 threads": Case(
        crowded.find,
        "host",
        signals(device_kind="cpu", machine_cores=2, threads=8),
        signals(device_kind="cpu", cores=8, threads=8),
    ),
    "16 busy host": Case(
        busy_host.find,
        "host",
        signals(device_kind="emulated", emulated_base_seconds=0.01, emulated_seconds_per_sample=0.0005),
        signals(device_kind="emulated", emulated_base_seconds=0.01, emulated_seconds_per_sample=0.0013),
    ),
    "16 too many processes": Case(
        crowded.find,
        "host",
        signals(worker_kind="process", workers=32, prefetch=64),
        signals(worker_kind="process", workers=4, prefetch=8),
    ),
    "16 cores that others have": Case(
        busy_host.find,
        "host",
        signals(core_wait={"forward": 4.0}, rows=(HostRow(20.0, 1.0, 4.0, 2.0),)),
        signals(core_wait={"forward": 4.0}, rows=(HostRow(20.0, 1.0, 8.0, 2.0),)),  # its own threads have them
    ),
    "16 quota": Case(
        busy_host.find,
        "host",
        signals(core_wait={"forward": 4.0}, quota_cores=0.5, rows=(HostRow(20.0, 0.06, 0.5, 1.0, throttled_cores=1.0),)),
        signals(core_wait={"forward": 4.0}, rows=(HostRow(20.0, 0.06, 0.5, 0.01),)),  # too little for a verdict
    ),
    "17 hot clock": Case(
        hot_clock.find,
        "compute",
        signals(celsius=(70, 86, 88), clock_share=(1.0, 0.7, 0.6)),
        signals(celsius=(70, 71, 72), clock_share=(1.0, 0.7, 0.6)),
    ),
    "18 memory headroom": Case(
        memory_headroom.find,
        None,
        signals(device_memory_peak_bytes=12.9e9, device_memory_total_bytes=23e9),
        signals(device_memory_peak_bytes=20e9, device_memory_total_bytes=23e9),
    ),
    "19 memory full": Case(
        memory_full.find,
        None,
        signals(device_memory_peak_bytes=22e9, device_memory_total_bytes=23e9),
        signals(device_memory_peak_bytes=18e9, device_memory_total_bytes=23e9),
    ),
    "20 needless checkpointing": Case(
        needless_checkpointing.find,
        "compute",
        signals(checkpointing=True, device_memory_peak_bytes=5e9, device_memory_total_bytes=16e9),
        signals(checkpointing=True, device_memory_peak_bytes=12e9, device_memory_total_bytes=16e9),
    ),
    "21 memory growth": Case(
        memory_growth.find,
        "memory",
        signals(seconds=SECOND_BY_SECOND, resident_bytes=tuple(1e9 + 50e6 * s for s in SECOND_BY_SECOND)),
        signals(seconds=SECOND_BY_SECOND, resident_bytes=tuple(min(1e9 + 50e6 * s, 1.5e9) for s in SECOND_BY_SECOND)),
    ),
    "22 port speed": Case(
        port_speed.find,
        "network",
        signals(ranks=ranks(peak_bits_per_second=98e6)),
        signals(ranks=ranks(peak_bits_per_second=400e6)),
    ),
    "22 port speed, measured": Case(
        port_speed.find,
        "network",
        signals(ranks=ranks(link_bits_per_second=96e6, cap_bits_per_second=100e6)),
        signals(ranks=ranks(link_bits_per_second=96e6, cap_bits_per_second=100e6, communication_seconds=0.005)),
    ),
    "23 exposed communication": Case(
        exposed_communication.find, "network", signals(ranks=ranks()), signals(ranks=ranks(communication_seconds=0.005))
    ),
    "25 straggler": Case(
        straggler.find,
        "straggler",
        signals(ranks=ranks(arrival_seconds=(0.06, 0.06, 0.11, 0.06))),
        signals(ranks=ranks(arrival_seconds=(0.06, 0.06, 0.065, 0.06))),
    ),
    "27 too many nodes": Case(
        too_many_nodes.find, None, signals(ranks=ranks(communication_seconds=0.04)), signals(ranks=ranks(communication_seconds=0.01))
    ),
    "28 checkpoint": Case(
        checkpoint_time.find, "checkpoint", signals(parts={"checkpoint": 8.0}), signals(parts={"checkpoint": 0.3})
    ),
    "28 validation": Case(
        validation_time.find, "validation", signals(parts={"validation": 8.0}), signals(parts={"validation": 0.3})
    ),
    "29 startup": Case(startup_time.find, "startup", signals(parts={"startup": 15.0}), signals(parts={"startup": 15.0}, import_seconds=11.0)),
    "30 spot": Case(spot_price.find, None, signals(spot_usd_per_hour=0.4), signals(spot_usd_per_hour=0.4, spot=True)),
    "32 unattributed": Case(
        unattributed.find, "unexplained", signals(parts={"unattributed": 4.0}), signals(parts={"unattributed": 0.3})
    ),
    "33 prediction off": Case(
        prediction_off.find, None, signals(prediction_errors=(0.05, -0.3)), signals(prediction_errors=(0.05, -0.1))
    ),
    "33 physics broken": Case(
        prediction_off.find,
        "unexplained",
        signals(steps=steps(own=0.05, wait=0.4), decode_seconds=0.05 * BATCHES),
        signals(steps=steps(own=0.05, wait=0.4), decode_seconds=1.6 * BATCHES),
    ),
    "34 labels": Case(
        learning.find,
        "labels",
        signals(classes=100, epochs=(Epoch(0, 4.5, 4.8, 0.012), Epoch(1, 3.4, 4.945, 0.012))),
        signals(classes=100, epochs=(Epoch(0, 4.5, 4.4, 0.05), Epoch(1, 3.4, 3.9, 0.12))),
    ),
    "35 overfitting": Case(
        learning.find,
        None,
        signals(epochs=tuple(Epoch(n, 2.0 - 0.4 * n, 2.0 + 0.3 * abs(n - 1)) for n in range(5))),
        signals(epochs=tuple(Epoch(n, 2.0 - 0.4 * n, 2.1 - 0.3 * n) for n in range(5))),
    ),
    "36 not finite": Case(
        failed.find,
        "diverged",
        signals(status="failed", cause="the loss is nan at step 7 (epoch 0, batch 6); the weights were not updated"),
        signals(),
    ),
    "36 diverging": Case(
        learning.find,
        "diverged",
        signals(steps=tuple(row(0, n, 64, 0.1, 0.0, loss=2.0 * 1.05**n) for n in range(100))),
        signals(steps=tuple(row(0, n, 64, 0.1, 0.0, loss=2.0 * 0.99**n) for n in range(100))),
    ),
    "37 no gradient": Case(
        failed.find,
        "diverged",
        signals(status="failed", cause="parameter conv1.weight received no gradient in the first step"),
        signals(status="stopped", cause="SIGINT"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule_finds_its_cause_and_nothing_else(name: str) -> None:
    case = CASES[name]
    found = case.rule(case.found)
    assert found is not None
    assert found.cause == case.cause
    assert found.evidence
    assert found.fix.text
    assert case.rule(case.not_found) is None


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES.values()} == set(RULES)


def test_causes_are_the_words_of_the_design() -> None:
    assert {case.cause for case in CASES.values() if case.cause} <= set(CAUSES)


@pytest.mark.parametrize("name", CASES)
def test_gains_are_intervals_around_their_value(name: str) -> None:
    found = CASES[name].rule(CASES[name].found)
    assert found is not None
    if found.gain is not None:
        assert 0.95 <= found.gain.low <= found.gain.value <= found.gain.high
        assert found.gain.high - found.gain.low >= 0.05  # two equal runs differ by as much


def test_a_batch_that_fits_leaves_room_for_what_is_no_tensor() -> None:
    """A 16 GB card: the context, NCCL and fragmentation are taken off before a batch is proposed."""
    alone = signals(batch_size=256, device_memory_peak_bytes=8e9, device_memory_total_bytes=16e9)
    proposed = [
        memory_headroom.find(replace(alone, ranks=ranks)).fix.changes["data.batch_size"]
        for ranks in (None, RankSignals(world_size=4))
    ]
    assert proposed == [440, 424]  # 0.9 (16 - 0.6) / 8 of 256, and 0.9 (16 - 1.1) / 8
    small = signals(batch_size=256, device_memory_peak_bytes=0.5e9, device_memory_total_bytes=1e9)
    assert memory_headroom.find(small) is None  # the context takes the rest


def test_what_was_hidden_of_an_exchange_stays_hidden_in_16_bits() -> None:
    """The bucket is ready 0.025 s into a step of 0.1: half of its 0.075 s end at 0.0625, after 0.05 s of computing."""
    two = ranks(communication_seconds=0.05, buckets=((25e6, 0.025),), gradient_bytes=25e6)
    found = exposed_communication.find(signals(ranks=two))
    assert found is not None
    assert found.saved_seconds == pytest.approx(200 * (0.05 - 0.0125), rel=0.02)
    assert found.cost_seconds == pytest.approx(200 * 0.05)
