"""What the loader measured about a cache is what advice and predictions rest on."""

from dataclasses import replace

import pytest
from constructed import changed, signals, steps
from test_what_if import JOB

from flatout.decisions.caching import DECODED_EACH_EPOCH, FILLING, KEPT, CacheChoice
from flatout.diagnosis.calibration import Calibration, Settings, calibrate
from flatout.diagnosis.rules import cold_epoch, decode_bound
from flatout.diagnosis.verdict import explain_signals
from flatout.diagnosis.what_if import cache_break_even, predict

CROP, FILL, KEEP = 0.002, 0.010, 0.001
DECLINED = CacheChoice(
    "auto", "off", "off, pays after 9 epochs, the run has 3", True, "memory", CROP, FILL, KEEP, pays_after_epochs=9.0
)
FILLED = replace(DECLINED, value="memory", reason="all decoded samples in memory")
STARVED = steps(own=0.1, wait=0.2)
STEPS, BATCH, STARTUP = 100, 64, 5.0


def job(choice: CacheChoice, epochs: int, state: str) -> Calibration:
    """One worker is the limit; a sample takes as long as the loader found in that state."""
    return replace(
        JOB, settings=Settings(BATCH, workers=1, epochs=epochs, cache=choice.value), fetch_seconds=0.0,
        decode_seconds=choice.seconds(state), augment_seconds=0.0, validation_seconds=0.0, checkpoint_seconds=0.0,
        device=replace(JOB.device, base_seconds=0.0, seconds_per_sample=0.0), step_extra_seconds=0.0,
        cache_choice=choice, sample_state=state,
    )  # fmt: skip


def seconds(*costs: float) -> float:
    """Of a run with these costs of a sample in its epochs."""
    return STARTUP + STEPS * BATCH * sum(costs)


@pytest.mark.parametrize("data_cache", ["auto", "off"])
def test_a_declined_cache_is_not_advised(data_cache: str) -> None:
    impossible = replace(DECLINED, wanted=data_cache, possible=False)
    starved = signals(workers=8, steps=STARVED, decode_seconds=2.4 * len(STARVED), cache=data_cache)
    starved = changed(starved, "input", cache_choice=impossible if data_cache == "off" else DECLINED)
    found = explain_signals(starved).findings
    assert [each for each in found if "data.cache" in each.fix.changes] == []
    limit = decode_bound.find(starved)
    assert limit is not None
    assert any("the loader keeps no decoded samples" in each for each in limit.evidence)


def test_a_cache_that_the_recipe_switched_off_is_advised() -> None:
    off = replace(DECLINED, wanted="off", reason="off (data.cache)", fits=None)
    starved = signals(workers=8, steps=STARVED, decode_seconds=2.4 * len(STARVED), cache="off", cache_choice=off)
    found = decode_bound.find(starved)
    assert found is not None
    assert "data.cache" in found.fix.changes


def test_a_cold_epoch_is_no_reason_for_a_cache_that_does_not_pay() -> None:
    cold = signals(steps=steps(first_epoch_wait=0.3))
    with_advice, without = (
        cold_epoch.find(changed(cold, "input", cache_choice=choice)) for choice in (FILLED, DECLINED)
    )
    assert with_advice is not None
    assert without is not None
    assert (with_advice.fix.changes, without.fix.changes) == ({"data.cache": "disk"}, {})


def test_filling_is_charged_to_the_first_epoch() -> None:
    declined = job(DECLINED, 3, DECODED_EACH_EPOCH)
    assert predict(declined, {}).run.value == pytest.approx(seconds(CROP, CROP, CROP))
    filled = predict(declined, {"data.cache": "memory"})
    assert filled.run.value == pytest.approx(seconds(FILL, KEEP, KEEP))
    assert filled.step.value == pytest.approx(BATCH * KEEP)
    assert filled.run.value > predict(declined, {}).run.value  # as the loader found
    assert cache_break_even(declined, {"data.cache": "memory"}) == 10
    assert predict(declined, {"data.cache": "auto"}).run.value == pytest.approx(seconds(CROP, CROP, CROP))


@pytest.mark.parametrize(("epochs", "costs"), [
    (9, [CROP] * 9),  # not less than nine epochs
    (10, [FILL] + [KEEP] * 9),
    (30, [FILL] + [KEEP] * 29),
    (1, [CROP]),
])  # fmt: skip
def test_the_loader_chooses_anew_for_another_number_of_epochs(epochs: int, costs: list[float]) -> None:
    longer = predict(job(DECLINED, 3, DECODED_EACH_EPOCH), {"train.epochs": epochs})
    assert longer.run.value == pytest.approx(seconds(*costs))


def test_steps_end_a_run_before_its_epochs_do() -> None:
    changes = {"train.epochs": 30, "train.max_steps": 2 * STEPS}
    ended = predict(job(DECLINED, 3, DECODED_EACH_EPOCH), changes)
    assert ended.run.value == pytest.approx(seconds(CROP, CROP))


def test_from_a_run_that_filled_its_cache() -> None:
    kept = replace(job(FILLED, 20, KEPT), cold_extra_seconds=STEPS * BATCH * (FILL - KEEP))
    assert predict(kept, {}).run.value == pytest.approx(seconds(FILL, *[KEEP] * 19))
    assert predict(kept, {"train.epochs": 40}).run.value == pytest.approx(seconds(FILL, *[KEEP] * 39))
    assert predict(kept, {"data.cache": "off"}).run.value == pytest.approx(seconds(*[CROP] * 20))
    assert predict(kept, {"train.epochs": 2}).run.value == pytest.approx(seconds(CROP, CROP))


def test_from_a_run_that_was_stopped_while_it_filled() -> None:
    filling = job(FILLED, 20, FILLING)
    assert predict(filling, {}).run.value == pytest.approx(seconds(FILL, *[KEEP] * 19))


def test_a_store_is_waited_for_until_samples_are_kept() -> None:
    remote = replace(job(DECLINED, 20, DECODED_EACH_EPOCH), remote=True, fetch_seconds=0.020)
    prediction = predict(remote, {"data.cache": "memory"})
    assert prediction.step.value == pytest.approx(BATCH * (KEEP + 30e-6))
    first_epoch = prediction.run.value - STARTUP - 19 * STEPS * prediction.step.value
    assert first_epoch == pytest.approx(STEPS * BATCH * (0.020 + FILL))


@pytest.mark.parametrize(("choice", "made", "state"), [
    (DECLINED, steps(), DECODED_EACH_EPOCH),
    (FILLED, steps(), KEPT),
    (FILLED, steps(epochs=1), FILLING),
])  # fmt: skip
def test_which_cost_a_run_measured(choice: CacheChoice, made: tuple, state: str) -> None:
    settings = Settings(BATCH, workers=4, epochs=4, cache=choice.value)
    calibration = calibrate(signals(steps=made, cache_choice=choice), settings)
    assert calibration.sample_state == state
    assert Calibration.from_dict(calibration.to_dict()) == calibration


def test_an_epoch_that_fills_is_no_warm_one() -> None:
    """Even where the device is the limit and its steps are as long as later ones."""
    run = signals(steps=steps(), cache_choice=FILLED)
    assert {step.epoch for step in run.step.warm} == {1, 2, 3}


def test_what_lies_on_disk_is_used_again() -> None:
    on_disk = replace(DECLINED, value="disk", fits="disk")
    assert on_disk.tier_for("auto", 2) == "disk"
    assert replace(DECLINED, possible=False).tier_for("memory", 50) == "off"
    assert replace(DECLINED, wanted="off").tier_for("auto", 50) == "auto"


def test_left_open_after_a_recipe_that_fixed_it_the_loader_decides_by_what_it_measures() -> None:
    """Large photos: filling never pays in so few epochs, and `auto` would not fill."""
    fixed = job(replace(DECLINED, wanted="off"), 3, DECODED_EACH_EPOCH)
    assert predict(fixed, {"data.cache": "auto"}).run.value == pytest.approx(seconds(CROP, CROP, CROP))
    assert predict(fixed, {"data.cache": "auto", "train.epochs": 30}).run.value == pytest.approx(
        seconds(FILL, *[KEEP] * 29)
    )
    assert predict(fixed, {"data.cache": "memory"}).run.value == pytest.approx(seconds(FILL, KEEP, KEEP))
