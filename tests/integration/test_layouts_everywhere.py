"""Each layout with what it meets: pools, caches, packs, audits, a bucket with a stage, shared batches, export."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layout_files as made
from flatout.commands.audit import audit_data
from flatout.commands.export_data import export_dataset
from flatout.config.schema import DataConfig
from flatout.data.loading.loader import open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.pack_writer import PackOptions, unpack, write_pack
from flatout.errors import DataError
from flatout.service.protocol.specs import describe, open_preparer
from flatout.service.protocol.stream_spec import StreamSpec
from servers.fixtures import Bucket
from sharing import VIEW
from training import assert_same_training, command, row_count, start, summary, trained, wait_until, write_recipe

FILES = made.pictures(train=8, val=2)
IMAGENET = made.imagenet_files(train=8, val=6)
S3_VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


def _parquet(root: Path) -> Path:
    made.write_parquet(root / "train-0.parquet", FILES, "train")
    made.write_parquet(root / "val-0.parquet", FILES, "val")
    return root


def _jsonl(root: Path) -> Path:
    tables = {f"{split}/metadata.jsonl": made.jsonl_of(FILES, split) for split in ("train", "val")}
    return made.write_files(root, FILES | tables)


MAKE: dict[str, Callable[[Path], Path]] = {
    "deflated zip": lambda root: made.write_zip(root / "set.zip", FILES),
    "stored zip": lambda root: made.write_zip(root / "set.zip", FILES, zipfile.ZIP_STORED),
    "table": lambda root: made.write_files(root, FILES | {"labels.csv": made.table_of(FILES)}) / "labels.csv",
    "webdataset": lambda root: made.write_files(root, made.webdataset_of(FILES)),
    "parquet": _parquet,
    "tiny-imagenet zip": lambda root: made.write_zip(root / "tiny.zip", made.tiny_of(FILES), root="tiny-imagenet-200/"),
    "hub folder": _jsonl,
    "mds": lambda root: made.write_files(root, made.mds_of(FILES)),
    "imagenet": lambda root: made.write_files(root, made.imagenet_downloads(IMAGENET, True, "tar.gz")),
}


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    made.write_files(root / "plain", FILES)
    made.write_files(root / "imagenet", IMAGENET)
    made.write_files(root / "tiny-imagenet zip", made.tiny_of(FILES))
    shards = made.write_files(root / "shards", made.mds_of(FILES))  # samples without names, until they are files
    list(unpack(open_dataset(DataConfig(path=str(shards))), root / "mds"))
    return root


def folder_of(folders: Path, layout: str) -> Path:
    own = folders / layout
    return own if own.exists() else folders / "plain"


def opened(path: Path | str, **keys: Any) -> Dataset:
    return open_dataset(DataConfig(path=str(path), **keys))


def batches(path: Path | str, workers: int = 2, balance: str = "off", **keys: Any) -> list[tuple[bytes, ...]]:
    """Two epochs, as bytes."""
    config = DataConfig(path=str(path), **{"cache": "off", "stage": "off", **keys})
    plan = BatchPlan(open_dataset(config).train, VIEW, 3, 5, balance=balance)
    with open_loader(plan, config, workers) as loader:
        return [
            (batch.images.numpy().tobytes(), batch.labels.numpy().tobytes(), batch.sample_ids.numpy().tobytes())
            for epoch in range(2)
            for batch in loader.epoch(epoch)
        ]


@pytest.mark.parametrize("layout", MAKE)
def test_the_batches_of_the_folder_whoever_prepares_them(tmp_path: Path, folders: Path, layout: str) -> None:
    path, expected = MAKE[layout](tmp_path / "set"), batches(folder_of(folders, layout), 0)
    assert batches(path, 2) == expected
    assert batches(path, 1, worker_kind="process") == expected
    for _ in range(2):  # filled, reopened
        assert batches(path, 2, cache="disk") == expected


@pytest.mark.parametrize("layout", MAKE)
def test_packs_and_audits(tmp_path: Path, folders: Path, layout: str) -> None:
    path, folder = MAKE[layout](tmp_path / "set"), folder_of(folders, layout)
    list(write_pack(opened(path), tmp_path / "pack", PackOptions()))
    assert opened(tmp_path / "pack").fingerprint == opened(folder).fingerprint
    assert batches(tmp_path / "pack") == batches(folder)
    result = audit_data(str(path))
    assert result["problems"] == 0
    assert result["splits"].keys() == {"train", "val"}


@pytest.mark.parametrize("layout", MAKE)
def test_a_service_opens_the_same_layout(tmp_path: Path, folders: Path, layout: str) -> None:
    """What a message names is enough to make the same batches elsewhere."""
    config = DataConfig(path=str(MAKE[layout](tmp_path / "set")), cache="off")
    plan = BatchPlan(open_dataset(config).train, VIEW, 3, 5, balance="classes")
    message = describe(plan, config, "train").model_dump_json()
    preparer = open_preparer(StreamSpec.model_validate_json(message))
    made_here = batches(folder_of(folders, layout), 0, balance="classes")
    for index in range(plan.batches_per_epoch):
        space = np.zeros(plan.largest_bytes(), np.uint8)
        arrays, _ = preparer.prepare(0, index, space)
        assert (arrays["images"].tobytes(), arrays["labels"].tobytes(), arrays["sample_ids"].tobytes()) == made_here[
            index
        ]


@pytest.mark.parametrize("layout", MAKE)
def test_from_a_bucket_with_a_stage(
    tmp_path: Path, folders: Path, layout: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option, variable in S3_VARIABLES.items():
        monkeypatch.setenv(variable, bucket.options[option])
    path, expected = MAKE[layout](tmp_path / "set"), batches(folder_of(folders, layout), 0)
    root = tmp_path / "set"
    for file in root.rglob("*"):
        if file.is_file():
            bucket.write(f"{layout}/{file.relative_to(root)}".replace(" ", "-"), file.read_bytes())
    url = f"{bucket.url}/{layout.replace(' ', '-')}" + (f"/{path.name}" if path.is_file() else "")
    dataset = opened(url)
    assert dataset.fingerprint == opened(folder_of(folders, layout)).fingerprint
    assert batches(url, 2) == expected
    for _ in range(2):
        assert batches(url, 2, stage="auto") == expected


@pytest.mark.parametrize("layout", ["mds", "flat table", "shards of others"])
def test_files_of_a_pack_whose_names_do_not_say_their_class(tmp_path: Path, layout: str) -> None:
    """They come with a table of the classes, and are the same dataset."""
    flat = {f"all/{name.replace('/', '-')}": data for name, data in FILES.items()}
    rows = "".join(f"{name},{name.split('-')[1]},{name.split('/')[1].split('-')[0]}\n" for name in flat)
    made.write_files(tmp_path / "flat table", flat | {"labels.csv": f"path,label,split\n{rows}".encode()})
    made.write_files(tmp_path / "mds", made.mds_of(FILES))
    for split in ("train", "val"):
        labelled = [(data, name.split("/")[1]) for name, data in FILES.items() if name.startswith(split)]
        members = {f"{k}.jpg": data for k, (data, _) in enumerate(labelled)}
        members |= {f"{k}.cls": label.encode() for k, (_, label) in enumerate(labelled)}
        made.write_files(tmp_path / "shards of others", {f"{split}-0.tar": made.tar_of(members)})
    list(write_pack(opened(tmp_path / layout), tmp_path / "pack", PackOptions()))
    list(unpack(opened(tmp_path / "pack"), tmp_path / "files"))
    assert (tmp_path / "files/labels.csv").exists()
    assert opened(tmp_path / "files").fingerprint == opened(tmp_path / layout).fingerprint
    assert batches(tmp_path / "files") == batches(tmp_path / layout)


def test_export_to_webdataset_and_back(tmp_path: Path, folders: Path) -> None:
    odd = {
        "train/cat/a.b.jpg": made.picture(5),
        "train/cat/t0.png": made.picture(6, kind="PNG"),
        "train/dog/noend": made.picture(8),
    }
    made.write_files(tmp_path / "set", FILES | odd)
    result = export_dataset(str(tmp_path / "set"), tmp_path / "shards", "webdataset", 8_000, quiet=True)
    assert result["shards"] > 3
    again, before = opened(tmp_path / "shards"), opened(tmp_path / "set")
    assert again.fingerprint == before.fingerprint
    assert batches(tmp_path / "shards") == batches(tmp_path / "set")
    with pytest.raises(DataError, match="is not empty; choose another folder"):
        export_dataset(str(tmp_path / "set"), tmp_path / "shards", "webdataset", 8_000, quiet=True)


def test_balanced_batches_are_the_same_from_processes_and_draw_repeats_anew(tmp_path: Path) -> None:
    few = {name: data for name, data in FILES.items() if "/cat/" not in name or name.endswith("0.jpg")}
    made.write_files(tmp_path / "set", few)
    expected = batches(tmp_path / "set", 0, balance="classes")
    assert batches(tmp_path / "set", 1, balance="classes", worker_kind="process") == expected
    ids = np.concatenate([np.frombuffer(each[2], np.int64) for each in expected])
    images = np.concatenate([np.frombuffer(each[0], np.uint8).reshape(-1, 3 * 16 * 16) for each in expected])
    only = images[ids == 0]  # the one cat, many times in an epoch
    assert len(only) > 8
    assert len(np.unique(only, axis=0)) > 4


UNEVEN = {
    name: data
    for name, data in made.pictures(train=24, val=3).items()
    if "/cat/" not in name or name < "train/cat/t2" or "val" in name
}
WEIGHTED = {"data__balance": "classes", "data__class_weights": "balanced", "data__classes": ["cat", "dog", "eel"]}


def run(work: Path, name: str, path: Path, **changes: Any) -> Path:
    config = write_recipe(work / f"{name}.yaml", path, **changes)
    done = command("train", config, "--run", f"runs/{name}", cwd=work, environment={"XDG_RUNTIME_DIR": str(work)})
    assert done.code == 0, done.err
    return work / "runs" / name


def test_ranks_with_shared_balanced_batches_of_a_zip(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    folder = made.write_files(tmp_path / "folder", UNEVEN)
    zipped = made.write_zip(tmp_path / "set.zip", UNEVEN)
    two = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False, "data__batch_size": 4}
    alone = run(work, "alone", folder, **WEIGHTED)
    plain = run(work, "plain", folder, **two, **WEIGHTED)
    shared = run(work, "shared", zipped, data__shared="auto", **two, **WEIGHTED)
    assert_same_training(shared, plain)
    assert summary(shared)["shared"]["hits"] > 0
    assert [row[:5] for row in trained(plain)] == [row[:5] for row in trained(alone)]  # the samples of every step


def test_a_killed_run_on_parquet_goes_on_to_the_bit(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for split in ("train", "val"):
        made.write_parquet(tmp_path / f"set/{split}.parquet", UNEVEN, split)
    whole = run(work, "whole", tmp_path / "set", **WEIGHTED)
    config = write_recipe(work / "killed.yaml", tmp_path / "set", **WEIGHTED)
    running = start("train", config, "--run", "runs/killed", cwd=work)
    wait_until(lambda: row_count(work / "runs/killed") >= 7 or not running.running, "7 steps")
    running.kill()
    assert command("train", config, "--run", "runs/killed", cwd=work).code == 0
    assert_same_training(work / "runs/killed", whole)
    assert summary(work / "runs/killed")["attempts"] == 2


WRONG = {
    "no such column": ({"data__label_column": "breed"}, "data.label_column is 'breed', but labels.csv"),
    "a class that is none": ({"data__class_weights": {"cow": 2.0}}, "data.class_weights names 'cow', which is not among the 3"),
    "weights of nothing": ({"data__class_weights": {"cat": 0, "dog": 0, "eel": 0}}, "is 0 for every class"),
    "a list that is not there": ({"data__classes": "none.txt"}, "data.classes is 'none.txt', which cannot be read"),
    "an unlisted class": ({"data__classes": ["cat", "dog"], "data__unlisted": "refuse"}, "does not name ('eel')"),
    "two validations": ({"data__split": 0.1}, "data.split is 0.1 but"),
    "another layout": ({"data__layout": "mds"}, "holds no index.json of MDS shards"),
    "no layout": ({"data__layout": "excel"}, "'mds', or your own as module:Name"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_line_and_nothing_is_written(tmp_path: Path, what: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    made.write_files(tmp_path / "set", UNEVEN | {"labels.csv": made.table_of(UNEVEN)})
    changes, says = WRONG[what]
    config = write_recipe(work / "wrong.yaml", tmp_path / "set/labels.csv", **changes)
    done = command("train", config, "--run", "runs/wrong", cwd=work)
    assert done.code == 2
    assert says in done.error_line
    assert not (work / "runs/wrong/steps.csv").exists()
    assert not (work / "runs/wrong/config.yaml").exists()
