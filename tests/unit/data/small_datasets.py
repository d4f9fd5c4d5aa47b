"""Small datasets on disk for the tests of this room."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from flatout.config.schema import DataConfig
from flatout.data.source.dataset import Dataset, Split, open_dataset

TORN = "torn"  # stands for a JPEG cut in half


def pixels(seed: int, width: int = 24, height: int = 20) -> np.ndarray:
    """A smooth coloured image, [height, width, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: np.ndarray | Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def jpeg(seed: int, width: int = 24, height: int = 20) -> bytes:
    return encoded(pixels(seed, width, height), quality=90)


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_tar(path: Path, files: Mapping[str, bytes], prefix: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def opened(path: Path, **limits: object) -> Dataset:
    return open_dataset(DataConfig(path=str(path), **limits))


def sample_files(count: int, bad: Mapping[int, bytes | str] | None = None) -> dict[str, bytes]:
    """`count` samples of two classes; sample ids follow the names. Some are replaced by what cannot be used."""
    files = {}
    for number in range(count):
        data = jpeg(number, 20 + number % 7, 18 + number % 5)
        wrong = (bad or {}).get(number)
        data = data[: len(data) // 2] if wrong == TORN else wrong if isinstance(wrong, bytes) else data
        files[f"train/{'ab'[number >= count // 2]}/{number:03d}.jpg"] = data
    return files


def split_of(root: Path, count: int, bad: Mapping[int, bytes | str] | None = None) -> Split:
    files = sample_files(count, bad)
    files |= {f"val/{name}/0.jpg": jpeg(0) for name in "ab"}
    return opened(write_files(root, files)).train
