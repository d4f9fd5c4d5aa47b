"""Every layout gives the fingerprint and the bytes of the folder of the same files."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

import layout_files as made
from flatout.config.schema import DataConfig
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.readers import Extents

FILES = made.pictures()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(path: Path, **keys: object) -> Dataset:
    return open_dataset(DataConfig(path=str(path), **keys))  # type: ignore[arg-type]


def contents(dataset: Dataset) -> list[tuple[str, str, bytes]]:
    """Name, class and bytes of every sample, in order."""
    rows = []
    for split in (dataset.train, dataset.val):
        if split is not None:
            blobs = split.read(np.arange(len(split)))
            for name, label, blob in zip(split.names, split.labels.tolist(), blobs, strict=True):
                assert isinstance(blob, bytes | memoryview), blob
                rows.append((name, dataset.classes[label], bytes(blob)))
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.write_files(tmp_path_factory.mktemp("folder"), FILES)


def _deflated(root: Path) -> Path:
    return made.write_zip(root / "set.zip", FILES, root="outer/")


def _stored(root: Path) -> Path:
    return made.write_zip(root / "set.ZIP", FILES, zipfile.ZIP_STORED)


def _csv(root: Path) -> Path:
    return made.write_files(root, FILES | {"labels.csv": made.table_of(FILES, bom=True)}) / "labels.csv"


def _tsv(root: Path) -> Path:
    return made.write_files(root, FILES | {"labels.tsv": made.table_of(FILES, "\t")}) / "labels.tsv"


def _zipped_table(root: Path) -> Path:
    """Flat files would be no folder's, so the names are kept; the table agrees with the folders."""
    return made.write_zip(root / "set.zip", FILES | {"labels.csv": made.table_of(FILES, ";")})


def _metadata(root: Path) -> Path:
    tables = {f"{split}/metadata.jsonl": made.jsonl_of(FILES, split) for split in ("train", "val")}
    return made.write_files(root, FILES | tables)


def _webdataset(root: Path) -> Path:
    return made.write_files(root, made.webdataset_of(FILES))


def _parquet(root: Path) -> Path:
    for split, name in (("train", "train-00000-of-00001"), ("val", "validation-00000-of-00001")):
        made.write_parquet(root / f"data/{name}.parquet", FILES, split)
    return root


LAYOUTS = {
    "zip, deflated": _deflated, "zip, stored": _stored, "csv": _csv, "tsv": _tsv, "zip with a table": _zipped_table,
    "metadata.jsonl": _metadata, "webdataset": _webdataset, "parquet": _parquet,
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_folder_of_its_files(tmp_path: Path, folder: Path, layout: str) -> None:
    plain, other = opened(folder), opened(LAYOUTS[layout](tmp_path / "set"))
    assert contents(other) == contents(plain)
    assert other.fingerprint == plain.fingerprint
    assert len(np.unique(other.train.known_locators(), axis=0)) == len(other.train)


@pytest.mark.parametrize("layout", ["zip, stored", "webdataset", "parquet"])
def test_what_lies_in_archives_as_it_is_is_read_at_its_offset(tmp_path: Path, layout: str) -> None:
    split = opened(LAYOUTS[layout](tmp_path / "set")).train
    assert isinstance(split.locate(np.arange(len(split))), Extents)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("truth", ["kaggle", "devkit", "tar.gz", "map"])
def test_imagenet_as_downloaded_is_the_folder_everybody_makes_of_it(tmp_path: Path, nested: bool, truth: str) -> None:
    files = made.imagenet_files()
    plain = opened(made.write_files(tmp_path / "folder", files))
    downloaded = opened(made.write_files(tmp_path / "set", made.imagenet_downloads(files, nested, truth)))
    assert contents(downloaded) == contents(plain)
    assert downloaded.fingerprint == plain.fingerprint


def test_the_training_tar_of_imagenet_alone_holds_out_its_validation(tmp_path: Path) -> None:
    files = made.imagenet_files()
    made.write_files(tmp_path, made.imagenet_downloads(files, nested=True, truth="kaggle"))
    dataset = opened(tmp_path / "ILSVRC2012_img_train.tar")
    assert dataset.classes == made.WNIDS
    assert len(dataset.train) + len(dataset.val or ()) == sum(name.startswith("train/") for name in files)


def test_kaggles_folders_and_flat_validation(tmp_path: Path) -> None:
    files = made.imagenet_files()
    kaggle = {f"ILSVRC/Data/CLS-LOC/{name}": data for name, data in files.items() if name.startswith("train/")}
    flat = made.imagenet_downloads(files, nested=False, truth="kaggle")
    kaggle |= {f"ILSVRC/Data/CLS-LOC/{name}": data for name, data in flat.items() if name.startswith("val/")}
    made.write_files(tmp_path / "set", kaggle | {"LOC_val_solution.csv": flat["LOC_val_solution.csv"]})
    plain = opened(made.write_files(tmp_path / "folder", files))
    assert contents(opened(tmp_path / "set")) == contents(plain)


def test_tiny_imagenet_as_downloaded_is_the_folder_in_the_zip(tmp_path: Path) -> None:
    files = {f"tiny/train/{w}/images/{w}_{k}.JPEG": made.picture(k) for w in made.WNIDS for k in range(3)}
    files |= {f"tiny/train/{w}/{w}_boxes.txt": b"x" for w in made.WNIDS}
    files |= {f"tiny/val/images/val_{k}.JPEG": made.picture(50 + k) for k in range(3)}
    lines = "".join(f"val_{k}.JPEG\t{w}\t0\t0\t9\t9\n" for k, w in enumerate(made.WNIDS))
    files |= {"tiny/val/val_annotations.txt": lines.encode(), "tiny/test/images/test_0.JPEG": made.picture(99)}
    plain = opened(made.write_files(tmp_path / "folder", files))
    zipped = opened(made.write_zip(tmp_path / "tiny-imagenet-200.zip", files))
    assert contents(zipped) == contents(plain)
    assert zipped.fingerprint == plain.fingerprint


def test_mds_shards_are_read_in_place(tmp_path: Path, folder: Path) -> None:
    dataset = opened(made.write_files(tmp_path, made.mds_of(FILES)))
    assert [(label, blob) for _, label, blob in contents(dataset)] == [
        (label, blob) for _, label, blob in contents(opened(folder))
    ]
    assert dataset.train.names[0] == "train/shard.00000/000000.jpg"


def test_a_single_shard_is_a_webdataset_too(tmp_path: Path) -> None:
    made.write_files(tmp_path, made.webdataset_of(FILES, shards=1))
    assert opened(tmp_path / "train-000000.tar").classes == ("cat", "dog", "eel")


def test_shards_with_json_labels_and_equal_keys(tmp_path: Path) -> None:
    for shard in range(2):
        members = {}
        for number in range(3):
            members[f"{number:04d}.jpg"] = made.picture(10 * shard + number)
            members[f"{number:04d}.json"] = json.dumps({"breed": "ab"[number % 2], "name": 5}).encode()
        made.write_files(tmp_path, {f"{shard:05d}.tar": made.tar_of(members)})
    dataset = opened(tmp_path, label_column="breed", split=0.4)
    names = {*dataset.train.names, *(dataset.val.names if dataset.val else ())}
    assert names == {f"{shard:05d}/{number:04d}.jpg" for shard in range(2) for number in range(3)}
    assert dataset.classes == ("a", "b")


def test_numbers_without_names_keep_their_order(tmp_path: Path) -> None:
    members = {}
    for number in range(12):
        members |= {f"{number}.jpg": made.picture(number), f"{number}.cls": str(number).encode()}
    dataset = opened(made.write_files(tmp_path, {"all.tar": made.tar_of(members)}))
    assert dataset.classes == tuple(f"{number:02d}" for number in range(12))


def test_images_of_parquet_that_have_no_names_have_an_ending(tmp_path: Path) -> None:
    """So that they are images again where they are written as files."""
    import pyarrow as pa
    from pyarrow import parquet

    images = [{"bytes": FILES[name], "path": None} for name in list(FILES)[:4]]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": [0, 1, 0, 1]})
    parquet.write_table(table, tmp_path / "train.parquet")
    found = open_dataset(DataConfig(path=str(tmp_path)))
    assert {name.rsplit(".", 1)[-1] for name in (*found.train.names, *(found.val.names if found.val else ()))} == {
        "jpg"
    }


def test_what_was_unpacked_of_parquet_is_proven_by_its_file(tmp_path: Path) -> None:
    made.write_parquet(tmp_path / "set/train.parquet", FILES, "train")
    first = opened(tmp_path / "set")
    assert first.content_fingerprint() is not None  # every image was read and digested
    assert len(list((tmp_path / "cache/flatout/parquet").glob("*.data"))) == 1
    made.write_parquet(tmp_path / "set/train.parquet", {name: made.picture(7) for name in FILES}, "train")
    again = opened(tmp_path / "set")
    assert {blob for _, _, blob in contents(again)} == {made.picture(7)}
    assert again.content_fingerprint() != first.content_fingerprint()


def test_classes_and_split_words_of_a_table(tmp_path: Path) -> None:
    rows = b"path,label,split\na.jpg,x,training\nb.jpg,y,train\nc.jpg,x,validation\nd.jpg,y,test\n"
    files = {f"{letter}.jpg": made.picture(number) for number, letter in enumerate("abcd")}
    dataset = opened(made.write_files(tmp_path, files | {"labels.csv": rows}))
    assert dataset.train.names == ("a.jpg", "b.jpg")
    assert dataset.val is not None
    assert dataset.val.names == ("c.jpg",)
    assert any("1 samples of the split test are left out" in note for note in dataset.notes)
