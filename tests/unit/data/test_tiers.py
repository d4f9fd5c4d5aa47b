"""Which cache is chosen, what is said about it, and that it stays within its budget."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_datasets import TORN, encoded, jpeg, opened, pixels, sample_files, split_of, write_files

from flatout.config.schema import DataConfig
from flatout.data.loading import loader as loader_module
from flatout.data.loading import tiers
from flatout.data.loading.fill_costs import Probed
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.tiers import Chosen, choose_cache
from flatout.data.pixels.decode import Undecodable, decode_pixels, native
from flatout.data.pixels.views import SHIPPED
from flatout.data.source.dataset import Split
from flatout.data.source.pack_writer import PackOptions, write_pack
from flatout.decisions.caching import SampleCosts
from flatout.machine import budgets
from flatout.machine.cgroup import Limits

DECODED = 20 * 24 * 24 * 3  # bytes of twenty samples of 24 x 24 pixels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flatout"


@pytest.fixture
def split(tmp_path: Path) -> Split:
    plain = {n: encoded(pixels(n, 24, 24), quality=90, subsampling="4:4:4") for n in range(20)}  # kept as RGB
    files = {f"train/{'ab'[n % 2]}/{n:02d}.jpg": data for n, data in plain.items()}
    return opened(write_files(tmp_path / "data", files | {f"val/{name}/0.jpg": jpeg(1) for name in "ab"})).train


def recipe(split: Split) -> BatchPlan:
    return BatchPlan(split, SHIPPED["train-64"], seed=0, batch_size=4)


def budget(monkeypatch: pytest.MonkeyPatch, memory: int, disk: int) -> None:
    for user in (tiers, loader_module):
        monkeypatch.setattr(user, "memory_budget_bytes", lambda: memory)
    monkeypatch.setattr(tiers, "disk_budget_bytes", lambda folder: disk)


def released(chosen: Chosen) -> Chosen:
    if chosen.store is not None:
        chosen.store.arena.close()
    return chosen


BIG = 10**9
DECISIONS: list[tuple[str, str, int, int, str | None, str]] = [
    # wanted, workers, memory, disk -> tier, note
    ("off", "thread", BIG, BIG, None, "cache: off (data.cache)"),
    ("auto", "process", BIG, BIG, None, "cache: off, worker processes do not share one (data.worker_kind)"),
    ("memory", "process", BIG, BIG, None, "cache: off, worker processes do not share one (data.worker_kind)"),
    ("auto", "thread", BIG, BIG, "memory", "cache: all decoded samples in memory (34.6 kB)"),
    ("auto", "inline", DECODED, 0, "memory", "cache: all decoded samples in memory (34.6 kB)"),
    ("auto", "thread", DECODED - 1, DECODED, "disk", "cache: decoded samples in "),
    ("auto", "thread", 0, DECODED - 1, None, "cache: off, 34.6 kB of decoded samples fit neither memory nor disk"),
    ("memory", "thread", DECODED // 4, BIG, "memory", "cache: 25 % of the decoded samples in memory (8.64 kB)"),
    ("memory", "thread", 0, BIG, "memory", "cache: 0 % of the decoded samples in memory (0 B)"),
    ("disk", "thread", BIG, BIG, "disk", "cache: decoded samples in "),
    ("disk", "thread", BIG, 100, "disk", "cache: decoded samples in "),
]


@pytest.mark.parametrize(("wanted", "kind", "memory", "disk", "tier", "note"), DECISIONS)
def test_decisions(
    split: Split, cache: Path, monkeypatch: pytest.MonkeyPatch,
    wanted: str, kind: str, memory: int, disk: int, tier: str | None, note: str,
) -> None:  # fmt: skip
    budget(monkeypatch, memory, disk)
    chosen = released(choose_cache(wanted, recipe(split), kind))
    assert chosen.choice.note.startswith(note)
    on_disk = cache / f"decoded-{split.storage_key()}"
    assert on_disk.exists() == (tier == "disk")
    assert (chosen.store is None) == (tier is None)
    assert chosen.choice.value == (tier or "off")
    if chosen.store is not None:
        assert chosen.store.arena.capacity_bytes <= (memory if tier == "memory" else disk)
        assert chosen.store.arena.rows == 20
    if tier == "disk":
        assert str(on_disk) in chosen.choice.note
        assert sum(path.stat().st_size for path in on_disk.iterdir()) < disk + 1000


def test_a_decoded_pack_needs_no_cache(tmp_path: Path, split: Split) -> None:
    list(write_pack(opened(tmp_path / "data"), tmp_path / "pack", PackOptions("decoded")))
    chosen = choose_cache("auto", recipe(opened(tmp_path / "pack").train), "thread")
    assert (chosen.store, chosen.choice.note) == (None, "cache: not needed, the pack is decoded")


def test_images_of_several_sizes_get_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = split_of(tmp_path / "mixed", 20, {3: TORN, 4: b"text"})
    chosen = choose_cache("memory", recipe(mixed), "thread")
    assert chosen.store is not None
    stored = 0
    for data in mixed.read(np.arange(20)):
        try:
            stored += decode_pixels(data).nbytes
        except Undecodable:
            continue
    assert stored < chosen.store.arena.capacity_bytes < 1.3 * stored


@pytest.mark.skipif(native is None, reason="only compiled code keeps planes")
def test_pictures_with_halved_chroma_get_half_of_the_room_and_some_for_grey_ones(tmp_path: Path) -> None:
    files = {f"train/{'ab'[n % 2]}/{n:02d}.jpg": jpeg(n, 48, 64) for n in range(200)}
    grey = encoded(Image.fromarray(pixels(7, 48, 64)).convert("L"))
    files["train/b/07.jpg"] = grey  # kept as RGB, and none of those that are looked at
    files |= {f"val/{name}/0.jpg": jpeg(1) for name in "ab"}
    halved = opened(write_files(tmp_path / "halved", files)).train
    assert grey not in [bytes(data) for data in halved.read(np.linspace(0, 199, 32).astype(np.int64))]
    chosen = choose_cache("memory", recipe(halved), "thread")
    assert chosen.store is not None
    images = np.empty(recipe(halved).shape(0), np.uint8)
    for index in range(50):
        prepare(recipe(halved), 0, index, images, chosen.store)
    planes, rgb = 48 * 64 * 3 // 2, 48 * 64 * 3
    assert chosen.store.arena.used_bytes == 199 * planes + rgb
    assert chosen.store.arena.capacity_bytes < 1.11 * 200 * planes


def test_what_no_longer_fits_is_read_again_and_counted(split: Split) -> None:
    chosen = choose_cache("memory", recipe(split), "thread", memory_bytes=DECODED // 4)
    assert chosen.store is not None
    sizes = [len(data) for data in split.read(np.arange(20)) if isinstance(data, bytes | memoryview)]
    images = np.empty(recipe(split).shape(0), np.uint8)
    batches = [prepare(recipe(split), 0, index, images, chosen.store) for index in range(5)]
    assert sum(batch.stages.bytes_read for batch in batches) == sum(sizes)
    again = [prepare(recipe(split), 0, index, images, chosen.store) for index in range(5)]
    assert sum(batch.stages.cache_hits for batch in again) == 5
    kept = chosen.store.arena.find(np.arange(20))[2][:, 0] > 0
    assert sum(batch.stages.bytes_read for batch in again) == sum(np.array(sizes)[~kept])


@pytest.mark.parametrize("wanted", ["auto", "memory", "disk"])
def test_samples_of_which_none_can_be_decoded_still_get_an_answer(tmp_path: Path, wanted: str) -> None:
    bad = split_of(tmp_path / "bad", 8, dict.fromkeys(range(8), b"text"))
    chosen = released(choose_cache(wanted, recipe(bad), "thread"))
    assert chosen.choice.note.startswith("cache: ")


def test_a_cache_in_use_is_done_without(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose_cache("disk", recipe(split), "thread")
    second = choose_cache("disk", recipe(split), "thread")
    assert first.store is not None
    assert second.store is None
    assert "in use by another run; this one goes without" in second.choice.note
    released(first)
    assert released(choose_cache("disk", recipe(split), "thread")).store is not None


def test_a_folder_that_cannot_be_written_is_done_without(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    chosen = choose_cache("disk", recipe(split), "thread")
    assert chosen.store is None
    assert chosen.choice.note.startswith("cache: off, no room for a disk cache")


def test_a_disk_cache_counts_towards_its_own_budget(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run leaves less free space behind; the second must not conclude that its cache does not fit."""
    budget(monkeypatch, 0, DECODED)
    assert released(choose_cache("auto", recipe(split), "thread")).store is not None
    budget(monkeypatch, 0, DECODED // 2)
    assert released(choose_cache("auto", recipe(split), "thread")).store is not None


def test_the_cache_of_a_resized_pack_is_its_own(tmp_path: Path, split: Split) -> None:
    keys = {split.storage_key()}
    for name, options in {
        "original": PackOptions(),
        "8": PackOptions("resized", short_side=8),
        "12": PackOptions("resized", short_side=12),
        "worse": PackOptions("resized", short_side=12, quality=30),
    }.items():
        list(write_pack(opened(tmp_path / "data"), tmp_path / name, options))
        pack = opened(tmp_path / name).train
        assert pack.fingerprint(()) == split.fingerprint(())
        keys.add(pack.storage_key())
    assert len(keys) == 5


def test_the_cache_of_limited_data_does_not_outlive_a_shift_of_rows(tmp_path: Path) -> None:
    """With a file added outside the limit, the same samples have other rows: what is kept by row is not theirs."""
    root = write_files(tmp_path / "data", sample_files(20) | {f"val/{name}/0.jpg": jpeg(1) for name in "ab"})
    before = opened(root, samples_per_class=3).train
    write_files(root, {"train/a/999.jpg": jpeg(9)})
    after = opened(root, samples_per_class=3).train
    assert before.fingerprint(()) == after.fingerprint(())
    assert before.rows.tolist() != after.rows.tolist()
    assert before.storage_key() != after.storage_key()


def epochs(split: Split, count: int = 3, **data: Any) -> tuple[list[bytes], Any]:
    with open_loader(recipe(split), DataConfig(stage="off", worker_kind="thread", **data), workers=2) as loader:
        batches = [batch.images.numpy().tobytes() for epoch in range(count) for batch in loader.epoch(epoch)]
        return batches, loader


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_small_cache_is_filled_to_its_capacity_and_changes_no_batch(
    split: Split, monkeypatch: pytest.MonkeyPatch, tier: str, share: float
) -> None:
    expected, _ = epochs(split, cache="off")
    room = int(share * DECODED)
    budget(monkeypatch, room, room)
    batches, loader = epochs(split, cache=tier)
    assert batches == expected
    assert loader.cache.arena.used_bytes <= max(1, room)
    assert loader.cache.arena.used_bytes == room // (24 * 24 * 3) * 24 * 24 * 3
    assert loader.stages.cache_hits + loader.stages.cache_misses == 60
    assert loader.stages.cache_hits >= 20 * int(share)  # the second epoch begins while the first is being decoded


def test_a_disk_cache_serves_the_next_loader_of_the_same_process(split: Split) -> None:
    expected, _ = epochs(split, cache="off")
    epochs(split, cache="disk")
    batches, loader = epochs(split, cache="disk")
    assert batches == expected
    assert loader.stages.cache_misses == 0


# --- budgets ----------------------------------------------------------------------------------------------------------

FREE = 8 * 2**30


@pytest.mark.parametrize(
    ("limit", "used", "free"), [(None, None, FREE), (10**6, 400_000, 600_000), (10**6, 1_400_000, 0), (2**60, 5, FREE)]
)
def test_memory_is_half_of_what_the_container_leaves(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, used: int | None, free: int
) -> None:
    monkeypatch.setattr(budgets, "own_limits", lambda: Limits(limit, "/some/cgroup", None, None))
    monkeypatch.setattr(budgets, "memory_used_bytes", lambda folder: used)
    monkeypatch.setattr(budgets.psutil, "virtual_memory", lambda: SimpleNamespace(available=FREE))
    assert budgets.memory_budget_bytes() == free // 2


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (1.5, 2), (0.2, 1), (100.0, 8)])
def test_cores_are_those_of_the_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(budgets, "own_limits", lambda: Limits(None, None, quota, None))
    monkeypatch.setattr(budgets.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert budgets.usable_cores() == cores


def test_disk_is_half_of_what_is_free_where_the_folder_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def usage(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=1001)

    monkeypatch.setattr(budgets.psutil, "disk_usage", usage)
    assert budgets.disk_budget_bytes(tmp_path / "not" / "there" / "yet") == 500
    assert asked == [str(tmp_path)]


def test_what_is_kept_is_counted(tmp_path: Path) -> None:
    write_files(tmp_path / "kept", {"data": bytes(70), "journal": bytes(8)})
    assert budgets.kept_bytes(tmp_path / "kept") == 78
    assert budgets.kept_bytes(tmp_path / "absent") == 0


def test_the_cache_is_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert budgets.cache_folder() == Path("/somewhere/flatout")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/user")
    assert budgets.cache_folder() == Path("/home/user/.cache/flatout")


def test_what_was_decided_is_written_down_with_its_figures(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    budget(monkeypatch, BIG, BIG)
    costs = SampleCosts(crop_seconds=0.002, fill_seconds=0.010, kept_seconds=0.001)  # pays after 9 epochs
    monkeypatch.setattr(tiers, "probe_samples", lambda recipe, with_costs: Probed(DECODED / 20, True, costs))
    decided = open_loader(recipe(split), DataConfig(path="x"), 0, epochs=3).decided
    assert decided is not None
    told = json.loads(json.dumps(asdict(decided)))["cache"]
    assert {key: told[key] for key in ("wanted", "value", "fits", "possible", "epochs")} == {
        "wanted": "auto", "value": "off", "fits": "memory", "possible": True, "epochs": 3,
    }  # fmt: skip
    assert (told["crop_seconds"], told["fill_seconds"], told["kept_seconds"]) == (0.002, 0.010, 0.001)
    assert told["pays_after_epochs"] == pytest.approx(9)
    assert "pays after 9 epochs, the run has 3" in told["reason"]
