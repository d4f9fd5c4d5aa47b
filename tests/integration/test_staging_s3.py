"""Staging against a real S3 server, through a proxy that counts and misbehaves."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flatout.config.schema import DataConfig
from flatout.data.loading import staging
from flatout.data.loading.loader import Loader, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import SHIPPED
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.formats import choose as choose_module
from flatout.errors import StorageError, TooManyQuarantined
from flatout.storage import open_checked
from servers.faults import Faults, Kind, Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy
from unit.cache.small_disk import SmallDisk, small_disk  # noqa: F401

SAMPLES, BATCH = 96, 8
SEED = 1  # of the faults: few among the last requests, which would all meet one object and have it given up
VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


def jpeg(folder: Path, number: int) -> bytes:
    path = folder / "one.jpg"
    coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
    Image.fromarray(coarse).resize((70 + number % 9, 64)).save(path, quality=92)
    return path.read_bytes()


@pytest.fixture
def images(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket of samples, the environment that leads to it, and a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, bucket.options[option])
    for number in range(SAMPLES):
        bucket.write(f"train/{'ab'[number % 2]}/{number:03d}.jpg", jpeg(tmp_path, number))
    for name in "ab":
        bucket.write(f"val/{name}/0.jpg", jpeg(tmp_path, 1000))
    return bucket


def opened(path: str | Path) -> Dataset:
    return open_dataset(DataConfig(path=str(path)))


def loader_of(dataset: Dataset, workers: int = 2, **data: Any) -> Loader:
    recipe = BatchPlan(dataset.train, SHIPPED["train-64"], seed=1, batch_size=BATCH)
    return open_loader(recipe, DataConfig(**{"cache": "off", "stage": "auto", **data}), workers)


def epoch_of(loader: Loader, epoch: int) -> list[tuple[list[int], str]]:
    """Ids and a digest of the pixels of each batch."""
    batches = list(loader.epoch(epoch))
    return [(b.sample_ids.tolist(), hashlib.sha256(b.images.numpy().tobytes()).hexdigest()) for b in batches]


def exact(batches: list[tuple[list[int], str]]) -> bool:
    """The ledger: every sample exactly once."""
    return sorted(sample for ids, _ in batches for sample in ids) == list(range(SAMPLES))


@pytest.fixture
def expected(images: Bucket) -> Callable[[int], list[tuple[list[int], str]]]:
    def of(epoch: int) -> list[tuple[list[int], str]]:
        with loader_of(opened(images.folder), 0) as loader:
            return epoch_of(loader, epoch)

    return of


Expected = Callable[[int], list[tuple[list[int], str]]]


@pytest.mark.parametrize("cache", ["off", "memory"])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_each_object_is_fetched_once(
    images: Bucket, fault_proxy: FaultProxy, expected: Expected, workers: int, cache: str
) -> None:
    dataset = opened(images.url)
    fault_proxy.set(Faults(latency_seconds=0.01))  # so that the end of one epoch and the start of the next overlap
    before = fault_proxy.counts().requests
    with loader_of(dataset, workers, cache=cache) as loader:
        assert loader.notes[0].startswith("stage: ")
        for epoch in range(3):
            assert epoch_of(loader, epoch) == expected(epoch)
            assert fault_proxy.counts().requests - before == SAMPLES
    assert loader.quarantine == {}


def test_the_next_run_makes_no_request_at_all(images: Bucket, fault_proxy: FaultProxy, expected: Expected) -> None:
    dataset = opened(images.url)
    with loader_of(dataset) as loader:
        epoch_of(loader, 0)
    before = fault_proxy.counts().requests
    fault_proxy.rules(Rule("throttle", method=""))
    with loader_of(dataset) as loader:
        assert f"{SAMPLES} of {SAMPLES} samples are there already" in loader.notes[0]
        assert [epoch_of(loader, epoch) for epoch in range(2)] == [expected(0), expected(1)]
    assert fault_proxy.counts().requests == before


def test_train_and_val_have_a_stage_each(images: Bucket, fault_proxy: FaultProxy) -> None:
    dataset = opened(images.url)
    assert dataset.val is not None
    recipe = BatchPlan(dataset.val, SHIPPED["eval-64"], seed=1, batch_size=2)
    with loader_of(dataset) as train, open_loader(recipe, DataConfig(cache="off"), 1, look_ahead=False) as val:
        assert "off" not in val.notes[0]
        assert exact(epoch_of(train, 0))
        assert len(list(val.epoch(0))) == 1


CHILD = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
from test_staging_s3 import loader_of, opened
loader = loader_of(opened(sys.argv[3]))
for index, _ in enumerate(loader.epoch(0)):
    if index == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_goes_on_where_it_was(images: Bucket, fault_proxy: FaultProxy, expected: Expected) -> None:
    dataset = opened(images.url)
    here, done_before = Path(__file__).parent, 0
    for last_batch in (1, 5):
        command = [sys.executable, "-c", CHILD, str(here), str(here.parent), images.url, str(last_batch)]
        assert subprocess.run(command, check=False).returncode == -9
        with loader_of(dataset) as loader:
            assert loader.log is not None
            done = len(loader.log)  # at least the batches that were handed over, and what had been fetched ahead
        assert done >= max((last_batch + 1) * BATCH, done_before)
        done_before = done
    before = fault_proxy.counts().requests
    with loader_of(dataset) as loader:
        assert f"{done} of {SAMPLES} samples are there already" in loader.notes[0]
        assert [epoch_of(loader, epoch) for epoch in range(2)] == [expected(0), expected(1)]
    assert fault_proxy.counts().requests - before == SAMPLES - done


KINDS: tuple[Kind, ...] = ("throttle", "truncate", "disconnect", "corrupt")


def often(kind: Kind, share: float) -> list[Rule]:
    """The same damage twice in a row would outvote the ETag (see storage/reading.py): each object gets it once."""
    if kind == "corrupt":
        return [Rule(kind, first=1, path_contains=f"/{number:03d}.jpg", after_bytes=900) for number in range(0, 96, 7)]
    return [Rule(kind, share=share, objects_only=True, after_bytes=500)]


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_a_store_that_misbehaves_costs_requests_but_no_sample(
    images: Bucket, fault_proxy: FaultProxy, expected: Expected, kind: Any
) -> None:
    dataset = opened(images.url)
    kinds = KINDS if kind == "all" else (kind,)
    rules = [rule for each in kinds for rule in often(each, 0.05 if kind == "all" else 0.1)]
    fault_proxy.set(Faults(rules=rules, seed=SEED))
    before = fault_proxy.counts()
    with loader_of(dataset) as loader:
        batches = [epoch_of(loader, epoch) for epoch in range(2)]
        assert loader.quarantine == {}
    assert batches == [expected(0), expected(1)]
    assert all(exact(each) for each in batches)
    after = fault_proxy.counts()
    hits = sum(after.hits.get(each, 0) for each in kinds)
    assert hits > 0
    assert after.requests - before.requests == SAMPLES + hits
    with loader_of(dataset) as loader:  # and what was kept is what the store has
        assert loader.log is not None
        local = opened(images.folder).train
        assert [loader.log.get(row) for row in range(SAMPLES)] == local.read(np.arange(SAMPLES))


def test_a_full_disk_falls_back_to_the_store(
    images: Bucket, fault_proxy: FaultProxy, expected: Expected, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    disk = small_disk("100k")
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
    dataset = opened(images.url)
    assert dataset.train.lengths.sum() > 100_000
    monkeypatch.setattr(staging, "disk_budget_bytes", lambda folder: 10**9)  # somebody else takes the rest meanwhile
    before = fault_proxy.counts().requests
    with loader_of(dataset) as loader:
        assert [epoch_of(loader, epoch) for epoch in range(2)] == [expected(0), expected(1)]
        assert loader.log is not None
        assert loader.log.full is not None
        assert "No space left" in loader.log.full
        kept = len(loader.log)
        assert 0 < kept < SAMPLES
    # at least what did not fit is asked for again; two batches that are prepared at once may both ask
    assert fault_proxy.counts().requests - before >= 2 * SAMPLES - kept


def test_too_little_disk_is_said_beforehand(
    images: Bucket, expected: Expected, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk("100k")))
    with loader_of(opened(images.url)) as loader:
        assert loader.notes[0].startswith("stage: off, ")
        assert "do not fit the" in loader.notes[0]
        assert epoch_of(loader, 0) == expected(0)


@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"cache": "memory"}), (2, {"stage": "off"}), (1, {"worker_kind": "process"})],
)
def test_a_store_that_is_gone_is_an_error_and_no_quarantine(
    images: Bucket, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, workers: int, options: dict[str, Any]
) -> None:
    impatient = partial(open_checked, deadline_seconds=0.5, throttle_seconds=0.5)
    monkeypatch.setattr(choose_module, "open_checked", impatient)
    dataset = opened(images.url)
    with loader_of(dataset, workers, max_quarantine_share=1.0, prefetch=1, **options) as loader:
        batches = loader.epoch(0)
        next(batches)
        fault_proxy.rules(Rule("disconnect", method=""))
        with pytest.raises(StorageError) as gone:
            list(batches)
        assert "\n" not in str(gone.value)
        assert images.url in str(gone.value)
        assert loader.quarantine == {}
    fault_proxy.clear()
    monkeypatch.setattr(choose_module, "open_checked", open_checked)
    with loader_of(opened(images.url), workers, **options) as loader:  # back again: nothing was lost
        assert exact(epoch_of(loader, 0))


def test_an_object_that_was_deleted_is_quarantined_with_its_name(images: Bucket) -> None:
    dataset = opened(images.url)
    for number in range(3):
        (images.folder / dataset.train.names[number]).unlink()
    with loader_of(dataset, max_quarantine_share=0.05) as loader:
        batches = epoch_of(loader, 0)
        assert sorted(loader.quarantine) == [0, 1, 2]
        assert all(failure.name in failure.reason for failure in loader.quarantine.values())
    assert sorted(sample for ids, _ in batches for sample in ids) == list(range(3, SAMPLES))
    with loader_of(dataset, max_quarantine_share=0.02) as loader, pytest.raises(TooManyQuarantined):
        epoch_of(loader, 0)


def test_a_second_job_streams_while_the_first_fills_the_stage(
    images: Bucket, fault_proxy: FaultProxy, expected: Expected
) -> None:
    dataset = opened(images.url)
    with loader_of(dataset) as first, loader_of(dataset) as second:
        assert "being filled by another run" in second.notes[0]
        assert epoch_of(first, 0) == epoch_of(second, 0) == expected(0)


def test_a_file_that_changed_in_the_bucket_is_another_dataset(images: Bucket, tmp_path: Path) -> None:
    with loader_of(opened(images.url)) as loader:
        epoch_of(loader, 0)
    images.write("train/a/000.jpg", jpeg(tmp_path, 5000) + b"\n")
    with loader_of(opened(images.url)) as loader:
        assert "filled during the first epoch" in loader.notes[0]
        epoch_of(loader, 0)
        assert loader.log is not None
        assert loader.log.get(0) == (images.folder / "train/a/000.jpg").read_bytes()
