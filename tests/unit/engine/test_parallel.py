"""What ranks need and can be said without them."""

import numpy as np
import pytest

from flatout.config.loading import load_config
from flatout.engine.parallel.link import agreeing, bandwidth
from flatout.engine.parallel.place import find_place
from flatout.engine.parallel.profile import StepProfile
from flatout.engine.schedules import scaled_rate
from flatout.errors import ConfigError
from flatout.sampling import rank_slice

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


def test_place_is_what_torchrun_says() -> None:
    place = find_place(TORCHRUN)
    assert place is not None
    assert (place.rank, place.world_size, place.local_rank, place.nodes) == (3, 4, 1, 2)
    assert find_place({}) is None
    assert [find_place({**TORCHRUN, "MASTER_ADDR": each}).warning is None for each in ("10.0.0.1", "8.8.8.8")] == [
        True,
        False,
    ]
    for wrong in ({**TORCHRUN, "RANK": "x"}, {key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE")}):
        with pytest.raises(ConfigError, match="torchrun"):
            find_place(wrong)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_slices_are_the_batch_and_keep_pairs_together(world_size: int) -> None:
    for count in range(40):
        ids = np.arange(count)
        parts = [ids[rank_slice(count, rank, world_size)] for rank in range(world_size)]
        assert np.concatenate(parts).tolist() == ids.tolist()
        assert all(len(part) == 0 or part[0] % 2 == 0 for part in parts)


def test_a_busy_host_does_not_decide_how_fast_the_wire_is() -> None:
    held_up = iter([0.50, 0.41, 0.335, 0.47, 0.334, 0.9])
    assert min(agreeing(lambda: next(held_up))) == 0.334
    quiet = iter([0.334, 0.335])
    assert len(agreeing(lambda: next(quiet))) == 2
    noise = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert len(agreeing(lambda: next(noise))) == 6, "it ends all the same"


def test_bandwidth_is_that_of_large_rounds() -> None:
    """4 ranks at 12.5 MB/s with 5 ms of latency: 1.5 bytes go over the wire for each byte reduced."""
    rounds = [(size, 0.005 + 1.5 * size / 12.5e6) for size in (2**18, 2**20, 2**22)]
    assert bandwidth(rounds, 4, 0.005) == pytest.approx(12.5e6)
    assert bandwidth(rounds[:1], 4, 0.005) == pytest.approx(12.5e6)
    assert bandwidth([(2**20, 0.002), (2**22, 0.001)], 2, 0.0) > 0, "noise is no negative speed"


def test_buckets_fill_in_the_order_gradients_are_ready() -> None:
    profile = StepProfile(1.0, ((4, 0.1), (4, 0.2), (10, 0.3), (1, 0.4)))
    assert profile.buckets(8) == [(8, 0.2), (10, 0.3), (1, 0.4)]
    assert profile.buckets(1000) == [(19, 0.4)]


@pytest.mark.parametrize(("rule", "rate"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_learning_rate_rules(rule: str, rate: float) -> None:
    assert scaled_rate(0.1, rule, 4) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parallel.compress": "fp16"}, "parallel.mode is ddp"),
        ({"parallel.mode": "ddp", "parallel.outer_lr": 0.7}, "parallel.local_steps is set"),
        ({"parallel.mode": "ddp", "parallel.local_steps": 4, "parallel.compress": "fp16"}, "keep one of them"),
        ({"parallel.mode": "ddp", "parallel.nodes": 2, "cost.usd_per_hour": 1}, "each machine is paid for"),
        ({"parallel.mode": "dp", "device": "cpu"}, "ddp works everywhere"),
        ({"parallel.mode": "ddp", "train.compile": True, "parallel.bucket_bytes": 500_000}, "at least 1048576"),
        ({"data.global_batch": 64, "data.batch_size": 32}, "data.global_batch is not set"),
        (
            {"parallel.mode": "ddp", "data.global_batch": 64, "parallel.scale_lr": "linear"},
            "data.global_batch is not set",
        ),
        ({"parallel.min_link": "1 MB/s", "parallel.mode": "ddp"}, "bit rate"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({"data": {"path": "x"}}, changes)
