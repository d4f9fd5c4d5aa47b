"""Equal names and sizes with other contents, through real services, a real S3 endpoint and resumed runs."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.config.schema import DataConfig
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.service.transport.paths import ServicePaths, service_paths
from integration.test_shared_beyond import Redis, Remote, free_port, redis  # noqa: F401
from servers.s3 import S3Server
from sharing import VIEW, Checker, in_order, make_plan, read_epochs, service, shared
from training import command, summary, write_recipe
from twins import make_twins, replace_slyly

COUNT = 32
VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePaths:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return service_paths()


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    return make_twins(tmp_path, COUNT)


# --- shared batches ---------------------------------------------------------------------------------------------------


def read_shared(root: Path | str, **options: Any) -> None:
    """Every batch of an epoch, compared with those made of the files themselves."""
    recipe = make_plan(root)
    with shared(root, **options) as (loader, pool):
        assert read_epochs(loader, range(1), Checker(recipe)) == in_order(recipe, range(1))
        assert pool.stats.hits, pool.stats.last_trouble


def test_mapped_batches_of_one_dataset_are_not_given_to_its_twin(twins: tuple[Path, Path], place: ServicePaths) -> None:
    plain, inverted = twins
    with service(place):
        read_shared(plain, cache="memory")
        read_shared(inverted, cache="memory")  # of the same service, which has the other's in its memory
        for path in sorted(plain.rglob("*.jpg")):
            replace_slyly(path, inverted / path.relative_to(plain))
        read_shared(plain, cache="memory")


def test_batches_in_redis_of_one_dataset_are_not_given_to_its_twin(
    twins: tuple[Path, Path],
    place: ServicePaths,
    redis: Redis,  # noqa: F811
) -> None:
    port = free_port()
    running = Remote(place, redis.address, port)
    try:
        for root in twins:
            read_shared(root, shared=f"grpc://127.0.0.1:{port}", shared_token=str(place.token))
    finally:
        running.stop()


# --- a real S3 endpoint -----------------------------------------------------------------------------------------------


@pytest.fixture
def endpoints(twins: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[S3Server, S3Server]]:
    """Two endpoints that each have a bucket `images`, with equal names and sizes; the first has its twin as well."""
    for server, (name, root) in enumerate([("images", twins[0]), ("images", twins[1])]):
        shutil.copytree(root, tmp_path / f"server{server}" / name)
    shutil.copytree(twins[1], tmp_path / "server0" / "inverted")
    with S3Server(tmp_path / "server0", cache_seconds=0) as one, S3Server(tmp_path / "server1", cache_seconds=0) as two:
        yield one, two


def use(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, server.options()[option])


def opened(path: Path | str) -> Dataset:
    return open_dataset(DataConfig(path=str(path)))


def pixels_of(path: Path | str, epochs: int = 1, **data: Any) -> list[str]:
    loader = open_loader(
        BatchPlan(opened(path).train, VIEW, 0, 8), DataConfig(**{"cache": "off", "worker_kind": "thread", **data}), 1
    )
    try:
        batches = [batch for epoch in range(epochs) for batch in loader.epoch(epoch)]
        return [hashlib.sha256(batch.images.numpy().tobytes()).hexdigest() for batch in batches]
    finally:
        loader.close()


@pytest.mark.parametrize("kept", [{}, {"cache": "disk"}, {"cache": "memory"}])
def test_buckets_of_equal_names_and_sizes_never_meet(
    twins: tuple[Path, Path],
    endpoints: tuple[S3Server, S3Server],
    monkeypatch: pytest.MonkeyPatch,
    kept: dict[str, str],
) -> None:
    plain, inverted = (pixels_of(root, 2) for root in twins)
    use(endpoints[0], monkeypatch)
    for _ in range(2):  # the second time from what was kept
        assert pixels_of("s3://images", 2, **kept) == plain
        assert pixels_of("s3://inverted", 2, **kept) == inverted
    use(endpoints[1], monkeypatch)
    assert pixels_of("s3://images", 2, **kept) == inverted


def test_an_object_written_over_is_fetched_again_and_only_that(
    twins: tuple[Path, Path], endpoints: tuple[S3Server, S3Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(endpoints[0], monkeypatch)
    pixels_of("s3://images")
    for root in (tmp_path / "server0" / "images", twins[0]):
        replace_slyly(root / "train/a/000.jpg", twins[1] / "train/a/000.jpg")
        (root / "train/a/000.jpg").touch()  # the server's own listing knows no more than size and time
    dataset = opened("s3://images")
    loader = open_loader(BatchPlan(dataset.train, VIEW, 0, 8), DataConfig(cache="off"), 0)
    assert f"{COUNT - 1} of {COUNT} samples are there already" in loader.notes[0]
    fetched = [hashlib.sha256(batch.images.numpy().tobytes()).hexdigest() for batch in loader.epoch(0)]
    loader.close()
    assert fetched == pixels_of(twins[0])


def test_a_bucket_has_the_fingerprint_of_its_folder(
    twins: tuple[Path, Path], endpoints: tuple[S3Server, S3Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(endpoints[0], monkeypatch)
    fingerprints = []
    for path in (twins[0], "s3://images"):
        for split in ("train", "val"):
            loader = open_loader(BatchPlan(getattr(opened(path), split), VIEW, 0, 8), DataConfig(cache="off"), 0)
            list(loader.epoch(0))
            loader.close()
        fingerprints.append(opened(path).content_fingerprint())
    assert fingerprints[0] is not None
    assert fingerprints[0] == fingerprints[1] != opened(twins[0]).fingerprint


# --- runs that go on --------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(twins: tuple[Path, Path], tmp_path: Path) -> Path:
    """A folder with a run on the first twin, stopped after one of two epochs."""
    work = tmp_path / "work"
    work.mkdir()
    write_recipe(work / "tiny.yaml", twins[0])
    finished = command("train", "tiny.yaml", "--set", "train.max_steps=5", cwd=work)
    assert finished.code == 0, finished.err
    return work


def test_files_replaced_between_two_attempts_end_the_second(begun: Path, twins: tuple[Path, Path]) -> None:
    plain, inverted = twins
    before = summary(begun / "runs" / "tiny")
    assert before["data_fingerprint_by"] == "content"
    for number in (0, 2, 4):
        replace_slyly(plain / f"train/a/{number:03d}.jpg", inverted / f"train/a/{number:03d}.jpg")
    refused = command("train", "tiny.yaml", cwd=begun)
    assert refused.code == 2
    said = "3 files changed since the checkpoint (train/a/000.jpg, train/a/002.jpg, train/a/004.jpg)"
    assert said in refused.error_line
    assert summary(begun / "runs" / "tiny") == before
    accepted = command("train", "tiny.yaml", "--accept-changed-data", cwd=begun)
    assert accepted.code == 0, accepted.err
    after = summary(begun / "runs" / "tiny")
    assert said in after["data_changes"][0]
    assert after["data_fingerprint_by"] == "content"
    assert after["data_fingerprint"] != before["data_fingerprint"]
    assert after["data_names_fingerprint"] == before["data_names_fingerprint"]
    assert command("report", "runs/tiny", cwd=begun).code == 0
    assert said in (begun / "runs" / "tiny" / "report.html").read_text()
    assert command("train", "tiny.yaml", "--set", "train.epochs=3", cwd=begun).code == 0  # it is the run's data now


def test_a_copied_dataset_goes_on_and_its_twin_does_not(begun: Path, twins: tuple[Path, Path], tmp_path: Path) -> None:
    refused = command("train", "tiny.yaml", "--set", f"data.path={twins[1]}", cwd=begun)
    assert refused.code == 2
    assert f"{COUNT + 2} files changed since the checkpoint" in refused.error_line
    subprocess.run(["cp", "-a", twins[0], tmp_path / "copy"], check=True)
    finished = command("train", "tiny.yaml", "--set", f"data.path={tmp_path / 'copy'}", cwd=begun)
    assert finished.code == 0, finished.err
    assert f"{COUNT + 2} files have other times or places than before, and the same contents" in finished.err


def test_a_run_of_an_older_flatout_goes_on_and_says_by_what(begun: Path) -> None:
    (begun / "runs" / "tiny" / "identity.npz").unlink()
    finished = command("train", "tiny.yaml", cwd=begun)
    assert finished.code == 0, finished.err
    assert "compared by names and sizes" in finished.err


def test_a_file_replaced_while_a_run_reads_it_ends_the_run(
    twins: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.commands.train import train_run
    from flatout.errors import DataChanged
    from flatout.training.accounting import Accounting

    plain, inverted = twins
    recipe = write_recipe(tmp_path / "tiny.yaml", plain, data__cache="off")
    real = Accounting.collect_from_ranks

    def replaced_after_the_first_epoch(accounting: Any) -> None:
        for path in sorted(plain.rglob("*.jpg")):
            replace_slyly(path, inverted / path.relative_to(plain))
        real(accounting)

    monkeypatch.setattr(Accounting, "collect_from_ranks", replaced_after_the_first_epoch)
    with pytest.raises(DataChanged, match=r"8 files changed \(train/.*--accept-changed-data"):
        train_run(recipe, run=tmp_path / "run")
    stopped = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (stopped["status"], stopped["samples_seen"]) == ("failed", COUNT)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = train_run(recipe, run=tmp_path / "run", accept_changed_data=True)
    assert f"{COUNT + 2} files changed" in run.summary["data_changes"][0]
