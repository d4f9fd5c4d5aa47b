"""The dataset we make ourselves: the same bytes every time, of the size and number that was asked for."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_datasets import opened

from flatout.data.source.shapes import KINDS, make_shapes
from flatout.errors import DataError


def made(folder: Path, classes: int, samples_per_class: int, size: int, **options: int) -> dict[str, bytes]:
    list(make_shapes(folder, classes, samples_per_class, size, **options))
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    first = made(tmp_path / "first", 3, 4, 16)
    assert made(tmp_path / "second", 3, 4, 16) == first
    assert made(tmp_path / "first", 3, 4, 16) == first  # over what is there
    other = made(tmp_path / "other", 3, 4, 16, seed=1)
    assert other.keys() == first.keys()
    assert all(other[name] != data for name, data in first.items())


def test_more_samples_do_not_change_the_first_ones(tmp_path: Path) -> None:
    few, many = made(tmp_path / "few", 2, 2, 16), made(tmp_path / "many", 2, 3, 16)
    assert all(many[name] == data for name, data in few.items() if name.startswith("train"))


def test_classes_samples_and_size_are_as_asked(tmp_path: Path) -> None:
    files = made(tmp_path, 12, 5, 20)
    dataset = opened(tmp_path)
    assert len(dataset.classes) == 12
    assert dataset.classes[:9] == tuple(f"{number:02d}-{KINDS[number % 8]}" for number in range(9))
    assert np.bincount(dataset.train.labels).tolist() == [5] * 12
    assert dataset.val is not None
    assert np.bincount(dataset.val.labels).tolist() == [1] * 12
    images = [Image.open(io.BytesIO(data)) for data in files.values()]
    assert {(image.size, image.format) for image in images} == {((20, 20), "JPEG")}
    assert len(set(files.values())) == len(files)


def test_the_number_of_validation_samples_can_be_given(tmp_path: Path) -> None:
    files = made(tmp_path, 2, 3, 16, val_per_class=4)
    assert sum(name.startswith("val/") for name in files) == 8


def test_progress_counts_up_to_the_total(tmp_path: Path) -> None:
    assert list(make_shapes(tmp_path, 2, 5, 8)) == [(number, 12) for number in range(1, 13)]


@pytest.mark.parametrize(("classes", "samples", "size"), [(1, 5, 32), (2, 0, 32), (2, 5, 7), (2, 5, 5000)])
def test_what_cannot_be_made_is_refused_before_anything_is_written(
    tmp_path: Path, classes: int, samples: int, size: int
) -> None:
    with pytest.raises(DataError, match=f"cannot make {classes} classes of {samples} samples at {size} pixels"):
        made(tmp_path / "out", classes, samples, size)
    assert not (tmp_path / "out").exists()
