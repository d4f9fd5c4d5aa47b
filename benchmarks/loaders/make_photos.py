"""Make a folder of 500x375 JPEG photos of about 100 KB each, out of the real 64-pixel images of Tiny-ImageNet.

Enlarging one small image gives a blur that compresses to nothing. A photo has detail at every scale, so each picture
here is one enlarged image plus the detail of two mosaics of smaller, overlapping tiles, plus sensor noise. Same seed,
same bytes.
"""

import argparse
import io
import json
import tarfile
from collections import defaultdict
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter
from unpack_tiny import TAR

WIDTH, HEIGHT = 500, 375
MEAN_BYTES_WANTED = 100_000
MOSAICS = ((160, 0.8), (80, 0.6))  # (tile pixels, weight of its detail)
NOISE_LEVELS = 5.0  # standard deviation, in 8-bit levels
CALIBRATION_PHOTOS = 32

_sources: dict[str, list[bytes]] = {}


def read_sources(tar_path: Path) -> dict[str, list[bytes]]:
    """The training JPEGs of each class, in the order of their names."""
    files: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    with tarfile.open(tar_path) as tar:
        for member in tar:
            parts = member.name.split("/")
            if member.isfile() and len(parts) > 2 and parts[1] == "train" and member.name.endswith(".JPEG"):
                files[parts[2]].append((member.name, tar.extractfile(member).read()))
    return {name: [data for _, data in sorted(files[name])] for name in sorted(files)}


def enlarged(data: bytes, width: int, height: int) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB").resize((width, height), Image.Resampling.BICUBIC)


def mosaic_detail(choices: list[bytes], tile_pixels: int, random: np.random.Generator) -> np.ndarray:
    """Overlapping tiles over the whole picture, minus what the larger scale already shows."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT))
    feather = Image.new("L", (tile_pixels, tile_pixels), 0)
    margin = tile_pixels // 10
    feather.paste(255, (margin, margin, tile_pixels - margin, tile_pixels - margin))
    feather = feather.filter(ImageFilter.GaussianBlur(margin / 2))
    step = int(tile_pixels * 0.7)
    for top in range(-margin, HEIGHT, step):
        for left in range(-margin, WIDTH, step):
            tile = enlarged(choices[random.integers(len(choices))], tile_pixels, tile_pixels)
            canvas.paste(tile, (left, top), feather)
    blurred = canvas.filter(ImageFilter.GaussianBlur(tile_pixels / 16))
    return np.asarray(canvas, np.float32) - np.asarray(blurred, np.float32)


def make_pixels(choices: list[bytes], key: tuple[int, ...]) -> Image.Image:
    random = np.random.default_rng(key)
    pixels = np.asarray(enlarged(choices[random.integers(len(choices))], WIDTH, HEIGHT), np.float32)
    for tile_pixels, weight in MOSAICS:
        pixels = pixels + weight * mosaic_detail(choices, tile_pixels, random)
    pixels = pixels + random.normal(0, NOISE_LEVELS, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def encode(photo: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    photo.save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue()


def tune_quality(photos: list[Image.Image]) -> int:
    """The quality whose mean size is nearest to the wanted one; sizes grow with quality, so bisect."""

    def mean_bytes(quality: int) -> float:
        return float(np.mean([len(encode(photo, quality)) for photo in photos]))

    low, high = 40, 97
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mean_bytes(middle) > MEAN_BYTES_WANTED else (middle, high)
    return min(low, high, key=lambda quality: abs(mean_bytes(quality) - MEAN_BYTES_WANTED))


def photo_key(seed: int, split: str, index: int) -> tuple[int, ...]:
    return (seed, int(split == "val"), index)


def write_photo(job: tuple[str, int], out: Path, seed: int, quality: int) -> int:
    split, index = job
    names = list(_sources)
    name = names[index % len(names)]
    data = encode(make_pixels(_sources[name], photo_key(seed, split, index)), quality)
    (out / split / name / f"{name}_{index:05d}.JPEG").write_bytes(data)
    return len(data)


def make_photos(tar_path: Path, out: Path, photos: int, val_photos: int, seed: int, processes: int) -> dict:
    _sources.update(read_sources(tar_path))  # before the fork, so the workers share it
    names = list(_sources)
    sample = [
        make_pixels(_sources[names[i % len(names)]], photo_key(seed, "train", i)) for i in range(CALIBRATION_PHOTOS)
    ]
    quality = tune_quality(sample)
    jobs = [("train", i) for i in range(photos)] + [("val", i) for i in range(val_photos)]
    for split, name in {(split, names[index % len(names)]) for split, index in jobs}:
        (out / split / name).mkdir(parents=True, exist_ok=True)
    with Pool(processes) as pool:
        sizes = pool.map(partial(write_photo, out=out, seed=seed, quality=quality), jobs, chunksize=32)
    about = {"photos": photos, "val_photos": val_photos, "seed": seed, "jpeg_quality": quality,
             "mean_bytes": round(float(np.mean(sizes))), "pixels": [WIDTH, HEIGHT], "classes": len(names)}  # fmt: skip
    (out / "about.json").write_text(json.dumps(about) + "\n")  # last: its presence means the folder is complete
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tar", type=Path, default=TAR)
    parser.add_argument("--photos", type=int, default=4096)
    parser.add_argument("--val-photos", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    print(json.dumps(make_photos(args.tar, args.out, args.photos, args.val_photos, args.seed, args.processes)))


if __name__ == "__main__":
    main()
