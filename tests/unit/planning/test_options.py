"""One job on machines: fit, limit, hours, dollars, and the choice between them."""

from dataclasses import replace

import pytest

from flatout.cost.machines import Machine
from flatout.planning.alternatives import with_alternatives
from flatout.planning.cards import find_card
from flatout.planning.data_path import Samples, feed_of
from flatout.planning.emit import emitted_files, tuned
from flatout.planning.options import Option, PlannedJob, RecipeChange, cheapest, fastest, frontier, option_for
from flatout.planning.work import Kernels, Line, TracedWork


def machine(name: str = "g4dn.xlarge", gpu: str = "T4", **changes: object) -> Machine:
    base = Machine(name, "aws", gpu, 1, 4.0, 16.0, 0.526, 0.229, 5.0, "nvme", "us-east-1", "2026-08")
    return replace(base, **changes)


def work(narrow: bool, checkpointing: bool) -> TracedWork:
    """Of ResNet-50's size: 24 GFLOP and 45 MB of activations a sample at 16 bits."""
    held = (12e6 if checkpointing else 45e6) * (1 if narrow else 2)
    kernels = (
        Kernels("conv", "forward", 256, 50, Line(0, 0.16e9), Line(2e6, 2e6), narrow),
        Kernels("conv", "backward", 256, 100, Line(0, 0.16e9), Line(2e6, 2e6), narrow),
    )
    memory = {"weights": Line(100e6, 0), "gradients": Line(0, 0), "optimizer": Line(100e6, 0),
              "activations": Line(0, held)}  # fmt: skip
    return TracedWork(kernels, memory, 25_000_000, 100e6, 1 / 3, Line(0, 1.6e6))


SAMPLES = Samples(100_000, 5_000, 110_000, 0.003, 0.001, 560_000, "measured here")


def job(**changes: object) -> PlannedJob:
    return replace(PlannedJob("resnet50", work, SAMPLES, batch=256, epochs=10), **changes)


def option(where: Machine | None = None, spot: bool = False, **changes: object) -> Option:
    where = where or machine()
    return option_for(job(**changes), where, find_card(where.gpu), spot)


def test_every_figure_has_an_interval_around_it_and_a_basis():
    told = option().to_dict()
    for key in ("device_samples_per_second", "samples_per_second", "hours", "usd"):
        assert told[key]["low"] <= told[key]["value"] <= told[key]["high"], key
    assert told["basis"] == "fitted on neighbours"
    assert set(told) >= {"machine", "gpu", "gpus", "fits", "peak_bytes", "largest_batch", "limit", "basis", "changes"}


def test_few_cores_limit_by_decoding_and_say_so():
    slow = replace(SAMPLES, decode_seconds=0.02)
    told = option(samples=slow)
    assert told.limit == "decode"
    assert told.per_second.value < told.device_per_second.value
    assert told.waiting_share > 0.05
    assert any(change.key == "data.path" and not change.applied and change.gain > 1 for change in told.changes)
    more = option(machine("g4dn.2xlarge", vcpus=8.0), samples=slow)
    assert more.per_second.value > 1.8 * told.per_second.value


def test_fast_decoding_leaves_the_device_as_the_limit():
    told = option(samples=replace(SAMPLES, decode_seconds=1e-5, augment_seconds=1e-5))
    assert told.limit == "device"
    assert told.per_second.value == pytest.approx(told.device_per_second.value)


def test_a_slow_network_limits_a_remote_store():
    far = replace(SAMPLES, store="s3", decode_seconds=1e-5, augment_seconds=1e-5, bytes_each=1e6)
    told = option(machine(network_gbps=0.5), samples=far)
    assert told.limit == "network"
    assert told.per_second.value == pytest.approx(0.5e9 / 8 / 1e6, rel=0.01)


def test_what_is_not_known_widens_the_interval():
    slow = replace(SAMPLES, decode_seconds=0.02)
    known = feed_of(slow, machine(), 256, 1, cached=False).per_second
    unknown = feed_of(slow, machine("1x_T4_SECURE", cloud="runpod"), 256, 1, cached=False).per_second
    assert unknown.high / unknown.value > known.high / known.value


def test_decoded_samples_that_fit_memory_are_not_decoded_again():
    slow = replace(SAMPLES, decode_seconds=0.02, decoded_bytes=10_000)
    assert feed_of(slow, machine(), 256, 10, cached=True).kept_in_memory
    assert not feed_of(slow, machine(memory_gib=1.0), 256, 10, cached=True).kept_in_memory
    assert not feed_of(slow, machine(), 256, 1, cached=True).kept_in_memory


def test_a_batch_that_does_not_fit_is_cut_into_parts():
    told = option(batch=1024)
    assert told.fits
    parts = next(change for change in told.changes if change.key == "train.accumulate")
    assert parts.applied
    assert "does not fit" in parts.why
    assert told.largest_batch >= 1024


def test_what_nothing_saves_is_told_as_not_fitting():
    def huge(narrow: bool, checkpointing: bool) -> TracedWork:
        memory = {**work(narrow, checkpointing).memory, "weights": Line(40e9, 0)}
        return replace(work(narrow, checkpointing), memory=memory)

    told = option(works=huge)
    assert not told.fits
    assert told.largest_batch == 0
    assert cheapest([told], None) is None


def test_more_cards_are_faster_and_pay_for_their_exchange():
    one, four = option(), option(machine("g4dn.12xlarge", gpus=4, vcpus=48.0))
    assert 2.5 < four.per_second.value / one.per_second.value <= 4.0
    assert {change.key: change.value for change in four.changes}["parallel.devices"] == 4


def test_a_slow_link_between_machines_is_the_limit():
    told = option(
        machine(network_gbps=0.1, vcpus=64.0), nodes=2, batch=32, samples=replace(SAMPLES, decode_seconds=1e-5)
    )
    assert told.limit == "network"
    assert told.per_second.value < told.device_per_second.value


def test_the_frontier_is_what_nothing_beats():
    fast = option(machine("p4d", "A100 80GB SXM4", usd_per_hour=4.0, vcpus=64.0))
    slow = option(machine(vcpus=64.0))
    bad = option(machine("dear", vcpus=64.0, usd_per_hour=50.0))
    assert [each.name for each in frontier([fast, slow, bad])] == [
        each.name for each in sorted((fast, slow), key=lambda each: each.usd.value) if each in frontier([fast, slow])
    ]
    assert bad not in frontier([fast, slow, bad])
    assert fastest([fast, slow, bad], None) is fast
    assert cheapest([fast, slow, bad], deadline_hours=fast.hours.value) is fast
    assert fastest([fast, slow, bad], max_usd=0.0) is None


def test_files_to_start_with_stop_before_the_money_is_gone():
    told = option(spot=True)
    changes = tuned(told, 1, max_usd=5.0)
    assert changes["stop.max_usd"] <= 5.0
    assert changes["cost.usd_per_hour"] == 0.229
    files = emitted_files(told, "tuned.yaml", 1)
    assert "instance_type: g4dn.xlarge" in files["sky.yaml"]
    assert "use_spot: true" in files["sky.yaml"]
    assert "#SBATCH --gpus-per-node=1" in files["slurm.sh"]
    assert "flatout train tuned.yaml" in files["run.sh"]
    assert "torchrun --nnodes=2" in emitted_files(told, "tuned.yaml", 2)["slurm.sh"]


def advice(told: Option, key: str) -> RecipeChange | None:
    return next((change for change in told.changes if change.key == key and not change.applied), None)


def test_a_small_batch_is_told_what_a_larger_one_would_bring():
    told = advice(option(batch=1), "data.batch_size")
    assert told is not None
    assert told.value > 1
    assert told.gain > 1.05
    assert advice(option(batch=256), "data.batch_size") is None


def test_a_store_that_answers_late_limits_where_many_cores_decode():
    far = replace(SAMPLES, store="s3", decode_seconds=0.002, augment_seconds=0.0)
    feeds = [feed_of(far, machine(vcpus=cores, network_gbps=25.0), 256, 10, cached=False) for cores in (1.0, 64.0)]
    assert [feed.limit for feed in feeds] == ["decode", "store"]


def test_receiving_takes_cores_too():
    near, far = (
        feed_of(replace(SAMPLES, store=store, bytes_each=500_000), machine(network_gbps=25.0), 256, 10, cached=False)
        for store in ("memory", "s3")
    )
    assert far.limit == "decode"
    assert far.per_second.value == pytest.approx(near.per_second.value * 0.004 / 0.005, rel=0.01)


def test_launching_and_decoding_share_the_cores():
    def per_second(host_seconds: float) -> float:
        kept = replace(SAMPLES, store="memory")
        return feed_of(kept, machine(), 256, 10, cached=False, host_seconds=host_seconds).per_second.value

    assert per_second(256 * 0.004 / 0.85) == pytest.approx(per_second(0.0) / 2)  # a vCPU there has 0.85 of one here


def test_weights_too_large_for_one_card_are_sharded_over_several():
    def large(narrow: bool, checkpointing: bool) -> TracedWork:
        told = work(narrow, checkpointing)
        return replace(
            told, memory={**told.memory, "weights": Line(9e9, 0), "optimizer": Line(9e9, 0)}, gradient_bytes=9e9
        )

    four = machine("g4dn.12xlarge", gpus=4, vcpus=48.0)
    told = option(four, works=large, batch=8)
    assert told.fits
    modes = [change.value for change in told.changes if change.key == "parallel.mode"]
    assert modes == ["fsdp"]
    assert not option(works=large, batch=8).fits
    assert [c.value for c in option(four, sharded=True).changes if c.key == "parallel.mode"] == []


def test_more_vcpus_than_workers_by_default_are_told_of():
    slow = replace(SAMPLES, decode_seconds=0.2)
    wide, narrow = (option(machine("g4dn.8xlarge", vcpus=cores), samples=slow) for cores in (64.0, 17.0))
    assert wide.per_second.value == pytest.approx(narrow.per_second.value, rel=0.05)
    told = advice(wide, "data.workers")
    assert told is not None
    assert told.value == 64
    assert told.gain == pytest.approx(4, rel=0.1)


def test_who_waits_for_jpegs_is_told_of_the_machine_with_more_vcpus_and_its_price():
    slow = job(samples=replace(SAMPLES, decode_seconds=0.02))
    small = option(samples=slow.samples)
    large = option(machine("g4dn.2xlarge", vcpus=8.0, usd_per_hour=0.752), samples=slow.samples)
    elsewhere = option(machine("n1", vcpus=16.0, cloud="gcp"), samples=slow.samples)
    told = advice(with_alternatives(slow, [small, large, elsewhere], None)[0], "machine")
    assert told is not None
    assert told.value == "g4dn.2xlarge"
    assert "8 vCPUs" in told.why
    assert "$" in told.why
    assert advice(with_alternatives(slow, [large], None)[0], "machine") is None


def test_who_comes_too_late_is_told_how_many_machines_would_not():
    told = option()
    hours = 0.7 * told.hours.value
    late = advice(with_alternatives(job(), [told], hours)[0], "parallel.nodes")
    assert late is not None
    assert late.value == 2
    assert advice(with_alternatives(job(), [told], 2 * hours)[0], "parallel.nodes") is None
