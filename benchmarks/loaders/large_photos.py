"""Large photos, PNG and WebP: CPU milliseconds for one sample of train-224, flatout and plain Pillow in turn.

    python benchmarks/loaders/large_photos.py [--photos 20] [--rounds 5]

Photos are 4000x3000 JPEGs of quality 90, made of noise enlarged to several scales (about 2 MB). Every round takes the
crops of another epoch, the same ones for every row; rows take turns within a round. Times are of one thread, so other
work on the machine counts less than it would on the clock, but it does count: caches and clock rates are shared.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from flatout.config.schema import DataConfig
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.decode import decoder_name
from flatout.data.pixels.draws import FLIP, draw
from flatout.data.pixels.reference import choose_shrink, crop_box, shrink_box
from flatout.data.pixels.views import SHIPPED, View
from flatout.data.source.dataset import open_dataset

SCALES = ((400, 1.0), (50, 0.4), (8, 0.15), (2, 0.08))  # pixels of a grain, weight
EXACT = SHIPPED["train-224"]
SCALED = replace(EXACT, name="train-224-scaled", decode="scaled")
SIDE = EXACT.size
Row = Callable[[int], None]


def photo(seed: int, width: int, height: int) -> Image.Image:
    random, total = np.random.default_rng(seed), np.zeros((height, width, 3), np.float32)
    for grain, weight in SCALES:
        noise = random.integers(0, 256, (height // grain + 2, width // grain + 2, 3), np.uint8)
        total += weight * np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
    return Image.fromarray((total / sum(weight for _, weight in SCALES)).astype(np.uint8))


def make_folder(root: Path, count: int, width: int, height: int, ending: str, **options: int) -> Path:
    for split, number in (("train", count), ("val", 1)):
        (root / split / "a").mkdir(parents=True, exist_ok=True)  # what was interrupted is made again
        for seed in range(number):
            photo(seed, width, height).save(root / split / "a" / f"{seed:03d}.{ending}", **options)
    return root


def flatout_row(folder: Path, view: View) -> Row:
    split = open_dataset(DataConfig(path=str(folder))).train
    recipe = BatchPlan(split, view, seed=0, batch_size=len(split), shuffle=False)
    images = np.zeros(recipe.shape(0), np.uint8)

    def run(epoch: int) -> None:
        assert not prepare(recipe, epoch, 0, images).failures

    return run


def pillow_row(folder: Path, draft: bool) -> Row:
    paths = sorted((folder / "train" / "a").iterdir())
    out = np.zeros((len(paths), 3, SIDE, SIDE), np.uint8)

    def run(epoch: int) -> None:
        geometry = draw(EXACT, 0, epoch, np.arange(len(paths))).geometry
        for slot, (path, row) in enumerate(zip(paths, geometry, strict=True)):
            with Image.open(path) as image:
                box = crop_box(row, *image.size)
                shrink = choose_shrink(box, SIDE) if draft else 1
                if shrink > 1:
                    image.draft("RGB", (image.width // shrink, image.height // shrink))
                x, y, w, h = shrink_box(box, shrink)
                crop = image.convert("RGB").crop((x, y, x + w, y + h)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            pixels = np.asarray(crop).transpose(2, 0, 1)
            out[slot] = pixels[:, :, ::-1] if row[FLIP] else pixels

    return run


def measure(rows: dict[str, Row], count: int, rounds: int) -> dict[str, list[float]]:
    """CPU milliseconds for a sample, by row and round; the first round of each is not counted."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for epoch in range(rounds + 1):
        for name, run in rows.items():
            started = time.thread_time()
            run(epoch)
            times[name].append(1e3 * (time.thread_time() - started) / count)
    return {name: values[1:] for name, values in times.items()}


def report(title: str, times: dict[str, list[float]]) -> None:
    first = next(iter(times.values()))
    print(f"\n| {title} | CPU ms a sample, median (least to most) | of the first row |\n|---|---|---|")
    for name, values in times.items():
        ratio = median(mine / theirs for mine, theirs in zip(values, first, strict=True))
        print(f"| {name} | {median(values):.2f} ({min(values):.2f} to {max(values):.2f}) | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"decoder: {decoder_name()}; Pillow {Image.__version__}; {options.photos} photos, {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as name:
        large = make_folder(Path(name, "large"), options.photos, 4000, 3000, "jpg", quality=90)
        rows = {
            "flatout, exact": flatout_row(large, EXACT),
            "flatout, scaled": flatout_row(large, SCALED),
            "Pillow, draft": pillow_row(large, True),
            "Pillow": pillow_row(large, False),
        }
        mean_bytes = np.mean([path.stat().st_size for path in large.rglob("*.jpg")])
        report(f"JPEG 4000x3000, {mean_bytes / 1e6:.1f} MB", measure(rows, options.photos, options.rounds))
        for ending in ("png", "webp"):
            folder = make_folder(Path(name, ending), 3 * options.photos, 500, 375, ending)
            pair = {"Pillow": pillow_row(folder, False), "flatout": flatout_row(folder, EXACT)}
            report(f"{ending} 500x375", measure(pair, 3 * options.photos, options.rounds))
