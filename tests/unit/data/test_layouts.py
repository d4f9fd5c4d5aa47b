"""Which files are samples, of which class and split, and the fingerprint of it all."""

import os
from pathlib import Path

import numpy as np
import pytest
from small_datasets import opened, write_files, write_tar

from flatout.config.schema import DataConfig
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.errors import DataError

PLAIN = {
    "train/cat/1.jpg": b"c1", "train/cat/2.jpg": b"c22", "train/dog/1.jpg": b"d1", "train/emu/9.jpg": b"e9",
    "val/cat/7.jpg": b"c7", "val/dog/7.jpg": b"d7", "val/emu/7.jpg": b"e7",
}  # fmt: skip
TINY = {
    "wnids.txt": b"n1\nn2\n", "words.txt": b"n1\tcat\nn2\tdog\n",
    "train/n1/images/n1_0.JPEG": b"a0", "train/n1/images/n1_1.JPEG": b"a1", "train/n1/n1_boxes.txt": b"n1_0.JPEG\t0",
    "train/n2/images/n2_0.JPEG": b"b0", "train/n2/n2_boxes.txt": b"n2_0.JPEG\t0",
    "val/images/val_0.JPEG": b"v0", "val/images/val_1.JPEG": b"v1", "val/images/val_2.JPEG": b"v2",
    "val/val_annotations.txt": b"val_0.JPEG\tn2\t0\t0\t9\t9\nval_1.JPEG\tn1\t0\t0\t9\t9\nval_2.JPEG\tn2\t0\t0\t9\t9\n",
    "test/images/test_0.JPEG": b"t0",
}  # fmt: skip


def contents(dataset: Dataset, split: str = "train") -> list[tuple[str, str, bytes]]:
    """Class, name and bytes of every sample, by id."""
    part = dataset.train if split == "train" else dataset.val
    assert part is not None
    answers = [bytes(answer) for answer in part.read(np.arange(len(part)))]  # type: ignore[arg-type]
    return [
        (dataset.classes[label], name, answer)
        for label, name, answer in zip(part.labels.tolist(), part.names, answers, strict=True)
    ]


def test_one_folder_per_class(tmp_path: Path) -> None:
    dataset = opened(write_files(tmp_path, PLAIN))
    assert dataset.classes == ("cat", "dog", "emu")
    assert contents(dataset) == [
        ("cat", "train/cat/1.jpg", b"c1"), ("cat", "train/cat/2.jpg", b"c22"), ("dog", "train/dog/1.jpg", b"d1"),
        ("emu", "train/emu/9.jpg", b"e9"),
    ]  # fmt: skip
    assert [each[::2] for each in contents(dataset, "val")] == [("cat", b"c7"), ("dog", b"d7"), ("emu", b"e7")]
    assert dataset.total_bytes == sum(map(len, PLAIN.values()))
    assert dataset.notes == ()


def test_the_layout_of_tiny_imagenet(tmp_path: Path) -> None:
    dataset = opened(write_files(tmp_path, TINY))
    assert dataset.classes == ("n1", "n2")
    assert [each[::2] for each in contents(dataset)] == [("n1", b"a0"), ("n1", b"a1"), ("n2", b"b0")]
    assert [each[::2] for each in contents(dataset, "val")] == [("n1", b"v1"), ("n2", b"v0"), ("n2", b"v2")]


def test_a_validation_image_without_a_line_is_named(tmp_path: Path) -> None:
    files = {**TINY, "val/images/extra.JPEG": b"x"}
    with pytest.raises(DataError, match=r"val/images/extra\.JPEG has no line in val/val_annotations\.txt"):
        opened(write_files(tmp_path, files))


def test_an_annotation_without_a_class_is_named(tmp_path: Path) -> None:
    files = {**TINY, "val/val_annotations.txt": b"val_0.JPEG\tn2\nval_1.JPEG\n"}
    with pytest.raises(DataError, match=r"val_annotations\.txt line 2 is 'val_1\.JPEG'; expected <file><tab><class>"):
        opened(write_files(tmp_path, files))


@pytest.mark.parametrize("files", [PLAIN, TINY], ids=["plain", "tiny"])
@pytest.mark.parametrize("prefix", ["", "./", "some folder/", "a/b/"])
def test_a_tar_of_it_is_the_same_dataset(tmp_path: Path, files: dict[str, bytes], prefix: str) -> None:
    folder = opened(write_files(tmp_path / "folder", files))
    tar = opened(write_tar(tmp_path / "data.tar", files, prefix))
    assert tar.fingerprint == folder.fingerprint
    assert contents(tar) == contents(folder)
    assert contents(tar, "val") == contents(folder, "val")


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test"])
def test_names_of_the_validation_split(tmp_path: Path, name: str) -> None:
    files = {key.replace("val/", f"{name}/"): data for key, data in PLAIN.items()}
    assert len(contents(opened(write_files(tmp_path, files)), "val")) == 3


def test_without_splits_a_share_is_held_out_the_same_way_every_time(tmp_path: Path) -> None:
    files = {f"{label}/{number}.jpg": f"{label}{number}".encode() for label in "ab" for number in range(100)}
    folder, tar = opened(write_files(tmp_path / "folder", files)), opened(write_tar(tmp_path / "data.tar", files, "x/"))
    train, val = contents(folder), contents(folder, "val")
    assert sorted(train + val) == sorted((name[0], name, data) for name, data in files.items())
    assert 5 <= len(val) <= 40
    assert contents(tar) == train
    assert tar.fingerprint == folder.fingerprint
    assert f"held out {len(val)} of 200 samples for validation" in folder.notes[0]
    assert len(contents(opened(tmp_path / "folder", holdout=0.5), "val")) > len(val)


def test_a_train_folder_alone_is_held_out_from_too(tmp_path: Path) -> None:
    files = {f"train/{label}/{number}.jpg": b"x" for label in "ab" for number in range(50)}
    dataset = opened(write_files(tmp_path, files))
    assert dataset.classes == ("a", "b")
    assert dataset.val is not None
    assert len(dataset.train) + len(dataset.val) == 100


def test_odd_names_keep_their_bytes_on_disk_and_in_a_tar(tmp_path: Path) -> None:
    odd = [
        "sp ace.jpg",
        "new\nline.jpg",
        "é.jpg",
        "e\u0301.jpg",
        "日本.jpg",
        os.fsdecode(b"bad\xff.jpg"),
        "x" * 255,
        "\\.jpg",
    ]
    files = {f"{split}/clà ss\n{k}/{name}": name.encode("utf-8", "surrogateescape") for split in ("train", "val")
             for k in (1, 2) for name in odd}  # fmt: skip
    folder = opened(write_files(tmp_path / "folder", files))
    assert folder.classes == ("clà ss\n1", "clà ss\n2")
    assert sorted(contents(folder)) == sorted(
        (name.split("/")[1], name, data) for name, data in files.items() if name.startswith("train/")
    )
    assert opened(write_tar(tmp_path / "data.tar", files)).fingerprint == folder.fingerprint


def test_samples_are_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    names = ["b.jpg", "a.jpg", "B.jpg", "10.jpg", "9.jpg", "é.jpg", "z.jpg"]
    files = {f"train/{label}/{name}": b"x" for label in "ab" for name in names} | {"val/a/0": b"x", "val/b/0": b"x"}
    found = [os.fsencode(name.rsplit("/", 1)[1]) for name in opened(write_files(tmp_path, files)).train.names]
    assert found[: len(names)] == sorted(os.fsencode(name) for name in names)


def test_dotfiles_are_no_samples(tmp_path: Path) -> None:
    extra = {"train/cat/.DS_Store": b"x", "train/.cache/1.jpg": b"x", ".git/config": b"x", "val/cat/._7.jpg": b"x"}
    plain = opened(write_files(tmp_path / "plain", PLAIN))
    assert opened(write_files(tmp_path / "extra", {**PLAIN, **extra})).fingerprint == plain.fingerprint


def test_a_loop_of_links_gives_every_file_once(tmp_path: Path) -> None:
    plain = opened(write_files(tmp_path / "plain", PLAIN))
    looped = write_files(tmp_path / "looped", PLAIN)
    (looped / "train/loop").symlink_to("..")
    (looped / "train/cat/self").symlink_to(".")
    assert opened(looped).fingerprint == plain.fingerprint


def fingerprint(tmp_path: Path, files: dict[str, bytes], **limits: object) -> str:
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    return opened(write_files(path, files), **limits).fingerprint


def test_the_fingerprint_follows_names_sizes_labels_and_limits(tmp_path: Path) -> None:
    plain = fingerprint(tmp_path, PLAIN)
    without = {name: data for name, data in PLAIN.items() if name != "train/cat/1.jpg"}
    changed = [
        fingerprint(tmp_path, {**without, "train/cat/0.jpg": b"c1"}),  # renamed
        fingerprint(tmp_path, {**without, "train/dog/0.jpg": b"c1"}),  # another label
        fingerprint(tmp_path, without),
        fingerprint(tmp_path, {**PLAIN, "train/cat/1.jpg": b"c1 longer"}),
        fingerprint(tmp_path, {**PLAIN, "val/cat/7.jpg": b"c7 longer"}),
        fingerprint(tmp_path, {name.replace("cat", "cow"): data for name, data in PLAIN.items()}),
        fingerprint(tmp_path, PLAIN, classes=2),
        fingerprint(tmp_path, PLAIN, samples_per_class=1),
    ]
    assert len({plain, *changed}) == len(changed) + 1
    assert fingerprint(tmp_path, PLAIN) == plain


def test_the_first_classes_by_number(tmp_path: Path) -> None:
    dataset = opened(write_files(tmp_path, PLAIN), classes=2)
    assert dataset.classes == ("cat", "dog")
    assert [each[0] for each in contents(dataset)] == ["cat", "cat", "dog"]
    assert [each[::2] for each in contents(dataset, "val")] == [("cat", b"c7"), ("dog", b"d7")]


@pytest.mark.parametrize("wanted", [["emu", "cat"], ["cat", "emu"], ["emu", "cat", "emu"]])
def test_named_classes_are_renumbered_by_name(tmp_path: Path, wanted: list[str]) -> None:
    dataset = opened(write_files(tmp_path, PLAIN), classes=wanted)
    assert dataset.classes == ("cat", "emu")
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert [each[::2] for each in contents(dataset)] == [("cat", b"c1"), ("cat", b"c22"), ("emu", b"e9")]
    assert [each[::2] for each in contents(dataset, "val")] == [("cat", b"c7"), ("emu", b"e7")]


def test_at_most_so_many_samples_of_each_class(tmp_path: Path) -> None:
    dataset = opened(write_files(tmp_path, PLAIN), samples_per_class=1, classes=["dog", "cat"])
    assert [each[::2] for each in contents(dataset)] == [("cat", b"c1"), ("dog", b"d1")]
    assert len(contents(dataset, "val")) == 2  # validation stays whole


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (["cat", "cow"], "data.classes names 'cow', which is not among the 3 classes"),
        (4, "data.classes is 4 but the dataset has 3; set it to at most 3"),
        ([], "data.classes is an empty list"),
    ],
)
def test_classes_that_are_not_there(tmp_path: Path, classes: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        opened(write_files(tmp_path, PLAIN), classes=classes)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"val/cow/1.jpg": b"x"}, "'cow' is only in val (0 only in train, 1 only in val)"),
        ({"train/cow/1.jpg": b"x"}, "'cow' is only in train (1 only in train, 0 only in val)"),
    ],
)
def test_different_classes_in_train_and_val_are_refused(tmp_path: Path, extra: dict[str, bytes], says: str) -> None:
    with pytest.raises(DataError) as caught:
        opened(write_files(tmp_path, {**PLAIN, **extra}))
    assert says in str(caught.value)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, PLAIN)
    (tmp_path / "train/cow").mkdir()
    with pytest.raises(DataError, match=r"class 'cow' in .* has no samples \(1 of 4 classes are empty\)"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "found nothing"),
        (["readme.txt"], "found 1 file (1 .txt), such as 'readme.txt'"),
        (["train/1.jpg", "train/2.jpg"], "found 2 files (2 .jpg), such as 'train/1.jpg'"),
        (["data/0.zip"], "found 1 file (1 .zip), such as 'data/0.zip'"),
        (["runs/mine/lock"], "found nothing"),
    ],
)
def test_a_folder_without_samples_is_refused_with_what_is_in_it(tmp_path: Path, names: list[str], found: str) -> None:
    with pytest.raises(DataError, match=r"expected train/<class>/<image> with val/<class>/<image>") as caught:
        opened(write_files(tmp_path, dict.fromkeys(names, b"x")))
    assert found in str(caught.value)


def test_a_table_beside_the_only_folder_of_images_is_named(tmp_path: Path) -> None:
    files = {"labels.csv": b"x", **{f"images/{number}.jpg": b"x" for number in range(9)}}
    with pytest.raises(DataError, match=r"holds 'labels\.csv' and one folder of images, 'images': a table of labels"):
        opened(write_files(tmp_path, files))


def test_a_validation_split_without_class_folders_is_named(tmp_path: Path) -> None:
    files = {name: data for name, data in PLAIN.items() if name.startswith("train/")}
    flat = {f"val/ILSVRC2012_val_{number:08d}.JPEG": b"x" for number in (1, 2)}
    with pytest.raises(DataError, match=r"val/ of .* has no folder per class: it holds 2 files \(2 \.JPEG\), such as"):
        opened(write_files(tmp_path, files | flat))


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"class 'cow' in .* has no images: it holds 'train/cow/list\.txt'"):
        opened(write_files(tmp_path, {**PLAIN, "train/cow/list.txt": b"x", "val/cow/list.txt": b"x"}))


def test_runs_inside_the_data_folder_are_no_class(tmp_path: Path) -> None:
    files = {f"{label}/{number}.jpg": b"x" for label in ("cat", "dog") for number in range(20)}
    plain = opened(write_files(tmp_path / "plain", files))
    within = write_files(tmp_path / "within", {**files, "runs/a/lock": b"1", "runs/a/steps.csv": b"x"})
    dataset = opened(within)
    assert (dataset.classes, dataset.fingerprint) == (plain.classes, plain.fingerprint)
    assert dataset.notes[0] == f"runs/ in {within} holds no images and is no class"


def test_a_path_that_is_not_set_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.path is not set"):
        open_dataset(DataConfig())
    with pytest.raises(DataError, match="does not exist"):
        opened(tmp_path / "nowhere")
