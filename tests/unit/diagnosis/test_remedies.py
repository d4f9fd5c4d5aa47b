"""The fix of a finding is the best that the model knows, and none that it sees no gain in."""

from dataclasses import replace

from constructed import signals, steps

from flatout.decisions.caching import CacheChoice
from flatout.diagnosis.calibration import Settings, calibrate
from flatout.diagnosis.remedies import improver
from flatout.diagnosis.signals import Signals
from flatout.diagnosis.verdict import explain_signals
from flatout.diagnosis.what_if import with_residual


def starved(crop: float, fill: float, kept: float, **more: object) -> tuple[Signals, CacheChoice]:
    """Two workers on two cores decode all the time; what a cache would take was measured."""
    seen = signals(
        cores=2, machine_cores=2, workers=2, prefetch=4, steps=steps(own=0.02, wait=0.11), cache="off", **more
    )
    choice = CacheChoice("off", "off", "off (data.cache)", fits="memory", crop_seconds=crop, fill_seconds=fill,
                         kept_seconds=kept, pays_after_epochs=1.5, epochs=4)  # fmt: skip
    return seen, choice


def explained(seen: Signals, choice: CacheChoice) -> dict[str, object]:
    settings = Settings(64, 2, 4, cache="off")
    calibration = replace(calibrate(seen, settings), cache_choice=choice)
    calibration = with_residual(calibration, seen.step.seconds)
    found = explain_signals(seen, improver(seen, calibration)).findings[0]
    return {"changes": dict(found.fix.changes), "gain": found.gain, "text": found.fix.text}


def test_a_cache_that_pays_is_proposed_with_what_the_model_expects_of_it() -> None:
    found = explained(*starved(crop=0.004, fill=0.005, kept=0.0002))
    assert found["changes"] == {"data.cache": "auto"}
    assert 1.5 < found["gain"].value < 4.0  # type: ignore[union-attr]


def test_a_cache_whose_filling_takes_what_it_saves_is_not_proposed() -> None:
    """Large pictures over few epochs: the first decodes them whole."""
    found = explained(*starved(crop=0.004, fill=0.03, kept=0.0038))
    assert found["changes"] == {}
    assert "no setting of the recipe helps" in found["text"]  # type: ignore[operator]


def test_a_part_that_gets_shorter_brings_loading_to_the_fore() -> None:
    """Sixteen parts hide a loader that takes 0.16 s a batch: in one part a step takes that, not 0.055 s."""
    device = {"kind": "emulated", "emulated_base_seconds": 0.01, "emulated_seconds_per_sample": 0.0007}
    seen = signals(
        cores=2, machine_cores=2, workers=1, prefetch=2, steps=steps(own=0.205, wait=0.0), cache="auto", accumulate=16,
        fetch_seconds=0.15 * 200, decode_seconds=0.01 * 200, augment_seconds=0.0, **device,
    )  # fmt: skip
    calibration = with_residual(calibrate(seen, Settings(64, 1, 4, accumulate=16)), seen.step.seconds)
    alone, found = (explain_signals(seen, *improve).findings[0] for improve in ((), (improver(seen, calibration),)))
    assert found.fix.changes == {"train.accumulate": 1}
    assert alone.gain is not None
    assert found.gain is not None
    assert alone.gain.value > 2.5
    assert 1.1 < found.gain.value < 1.4
    assert found.cost_seconds == alone.cost_seconds
