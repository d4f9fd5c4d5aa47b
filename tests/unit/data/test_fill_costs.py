"""That what is measured of keeping decoded samples is what it says, and decides."""

from pathlib import Path

import pytest
from small_datasets import TORN, jpeg, split_of

from flatout.cache.arena import Arena, memory_arena
from flatout.data.loading import fill_costs, tiers
from flatout.data.loading.fill_costs import Probed, probe_samples
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.tiers import choose_cache
from flatout.data.pixels.decode import native
from flatout.data.pixels.views import resolve_view
from flatout.decisions.caching import SampleCosts

HUGE = SampleCosts(crop_seconds=10e-3, fill_seconds=100e-3, kept_seconds=1e-3)


def recipe(path: Path, view: str = "train-64", **odd: bytes) -> BatchPlan:
    split = split_of(path, 20, {int(slot[1:]): data for slot, data in odd.items()})
    return BatchPlan(split, resolve_view(view), 0, 4)


@pytest.mark.skipif(native is None, reason="the compiled decoder crops without decoding the whole")
def test_a_few_samples_are_measured(tmp_path: Path) -> None:
    probed = probe_samples(recipe(tmp_path, _3=TORN, _4=b"text"), with_costs=True)
    assert probed.costs is not None
    assert min(probed.costs.crop_seconds, probed.costs.fill_seconds, probed.costs.kept_seconds) > 0
    assert probe_samples(recipe(tmp_path / "b"), with_costs=False).costs is None
    assert probe_samples(recipe(tmp_path / "c", "raw"), with_costs=True).costs is None


@pytest.mark.skipif(native is None, reason="the compiled decoder crops without decoding the whole")
def test_no_huge_page_is_tried_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a host must find first costs as much as all the samples that are timed."""
    arenas: list[Arena] = []

    def remembered(*values: int, **options: bool) -> Arena:
        arenas.append(memory_arena(*values, **options))
        return arenas[-1]

    monkeypatch.setattr(fill_costs, "memory_arena", remembered)
    photos = {f"_{slot}": jpeg(slot, 1000, 800) for slot in range(20)}
    assert probe_samples(recipe(tmp_path, **photos), with_costs=True).costs is not None
    assert [arena.shared[2][1] > 1 << 40 for arena in arenas] == [True]


def test_a_header_that_lies_does_not_make_a_dataset_large(tmp_path: Path) -> None:
    honest = jpeg(0)
    at = honest.index(b"\xff\xc0") + 5
    lying = honest[:at] + b"\xff\xff\xff\xff" + honest[at + 4 :]
    probed = probe_samples(recipe(tmp_path, _3=lying), with_costs=True)
    assert probed.decoded_bytes < 10**5


def test_auto_goes_without_where_filling_does_not_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = recipe(tmp_path / "data")
    assert choose_cache("auto", job, "thread", epochs=1).choice.note.startswith("cache: off, the run has one epoch")
    monkeypatch.setattr(tiers, "probe_samples", lambda *_, **__: Probed(1000.0, True, HUGE))
    assert choose_cache("auto", job, "thread", epochs=5).choice.note.startswith(
        "cache: off, pays after 11 epochs, the run has"
    )
    filled = choose_cache("auto", job, "thread", epochs=50)
    assert filled.store is not None
    assert filled.choice.note.startswith(
        "cache: all decoded samples in memory (20 kB); pays after 11 epochs, the run has 50"
    )
    for explicit in ("memory", "disk"):
        chosen = choose_cache(explicit, job, "thread", epochs=1)
        assert chosen.store is not None
        chosen.store.arena.close()


def test_what_an_earlier_run_left_on_disk_is_used_for_one_epoch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job = recipe(tmp_path / "data")
    first = choose_cache("disk", job, "thread")
    assert first.store is not None
    first.store.arena.close()
    chosen = choose_cache("auto", job, "thread", memory_bytes=0, epochs=1)
    assert chosen.store is not None
    chosen.store.arena.close()
