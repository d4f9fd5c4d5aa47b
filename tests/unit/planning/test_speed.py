import math

import pytest

from flatout.errors import ConfigError
from flatout.planning.cards import find_card, load_cards
from flatout.planning.estimate import Basis, Correction, arithmetic_for, load_coefficients, speed_of
from flatout.planning.speed import NAMES
from flatout.planning.work import Kernels, Line, TracedWork


def work(kind: str = "conv", flops: float = 1e9, moved: float = 1e6, narrow: bool = True) -> TracedWork:
    kernels = (Kernels(kind, "forward", 256, 10, Line(0, flops), Line(0, moved), narrow),)
    return TracedWork(kernels, {}, 1, 4.0, 1 / 3, Line(0, 0))


def seconds(
    traced: TracedWork, card: str, arithmetic: str = "amp", inside: bool | None = True, batch: float = 64
) -> float:
    return speed_of(traced, batch, find_card(card), arithmetic, inside, "some-model").seconds.value


def test_arithmetic_goes_with_the_tensor_cores_and_traffic_with_the_memory():
    heavy, light = work(flops=1e10), work("elementwise", flops=0.0, moved=1e8)
    assert seconds(heavy, "A100 80GB SXM4") < 0.7 * seconds(heavy, "RTX 3090")
    ratio = seconds(light, "T4") / seconds(light, "RTX 3090")
    assert 0.6 * 936 / 320 < ratio < 1.6 * 936 / 320


def test_bandwidth_beyond_the_vector_units_is_of_no_use_in_16_bits():
    def gain(narrow: bool) -> float:
        light = work("elementwise", flops=0.0, moved=1e8, narrow=narrow)
        return seconds(light, "RTX 6000 Ada") / seconds(light, "A100 80GB SXM4")

    assert gain(narrow=True) < 0.85 * 2039 / 960
    assert gain(narrow=False) > 1.1 * gain(narrow=True)


def test_nothing_is_faster_than_the_card():
    for card in load_cards().values():
        arithmetic = arithmetic_for(card, "auto", tf32=True)
        peak = card.fp16_tensor_tflops if arithmetic == "amp" else card.tf32_tflops or card.fp32_tflops
        assert 10 * 1e10 * 64 / seconds(work(flops=1e10), card.name, arithmetic) < 1.3 * peak * 1e12


def test_tiny_kernels_cost_their_launch():
    one = speed_of(work(flops=1.0, moved=1.0), 1, find_card("H100 SXM5"), "amp", True, "some-model").seconds.value
    assert one > 10 * 3e-6


def test_channels_outside_cost_tensor_cores_time():
    assert seconds(work(flops=1e10), "RTX 3090", inside=False) > 1.1 * seconds(
        work(flops=1e10), "RTX 3090", inside=True
    )


def test_the_interval_widens_with_the_basis():
    told = load_coefficients()
    assert told.spread[Basis.MEASURED] < told.spread[Basis.NEIGHBOURS] <= told.spread[Basis.ROOFLINE]
    known = speed_of(work(), 64, find_card("RTX 3090"), "amp", True, "resnet50")
    near = speed_of(work(), 64, find_card("RTX A4000"), "amp", True, "resnet50")
    assert (known.basis, near.basis) == (Basis.MEASURED, Basis.NEIGHBOURS)
    assert known.seconds.high / known.seconds.value < near.seconds.high / near.seconds.value


def test_a_model_that_nobody_published_widens_it_too():
    known, unknown = (speed_of(work(), 64, find_card("T4"), "amp", True, name).seconds for name in ("resnet50", "mine"))
    assert unknown.high / unknown.value > known.high / known.value


def test_a_run_of_ones_own_corrects_every_card_and_narrows_the_interval():
    plain = speed_of(work(), 64, find_card("T4"), "amp", True, "mine")
    told = speed_of(work(), 64, find_card("T4"), "amp", True, "mine", Correction(1.25, "A10G", "runs/mine"))
    assert told.seconds.value == pytest.approx(1.25 * plain.seconds.value)
    assert told.seconds.high / told.seconds.value < plain.seconds.high / plain.seconds.value
    assert told.basis is Basis.OWN


def test_auto_takes_what_training_would_take():
    assert arithmetic_for(find_card("T4"), "auto", tf32=True) == "amp"
    assert arithmetic_for(find_card("GTX 1080 Ti"), "auto", tf32=True) == "fp32"
    assert arithmetic_for(find_card("A10G"), "fp32", tf32=True) == "tf32"
    assert arithmetic_for(find_card("A10G"), "fp32", tf32=False) == "fp32"


def test_the_line_over_the_batch_gives_the_step_back():
    told = speed_of(work(), 64, find_card("A10G"), "amp", True, "resnet50")
    assert told.device.step_seconds(64) == pytest.approx(told.seconds.value)


def test_an_unknown_card_is_one_line_with_the_nearest():
    with pytest.raises(ConfigError, match="RTX 3090") as caught:
        find_card("RTX3090")
    assert "\n" not in str(caught.value)


def test_shipped_coefficients_are_whole_and_finite():
    told = load_coefficients()
    assert len(told.vector) == len(NAMES)
    assert all(math.isfinite(value) for value in (*told.vector, *told.offsets.values()))
    assert not any(key.startswith("suite:") for key in told.offsets)
