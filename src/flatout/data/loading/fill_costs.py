"""What keeping decoded samples would cost and save, measured on a few of them; decisions/caching.py decides by it."""

import time
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import numpy as np

from flatout.cache.arena import memory_arena
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.decode import Undecodable, decode_pixels, native
from flatout.data.pixels.draws import draw
from flatout.data.source.readers import read_source
from flatout.decisions.caching import SampleCosts
from flatout.errors import StorageError

_SIZED, _TIMED = 32, 8  # samples whose size is looked at, and of these, that are timed


@dataclass(frozen=True)
class Probed:
    """What a few samples say about all of them. No costs where every sample is decoded whole anyway."""

    decoded_bytes: float  # of a sample as it is kept, on average
    one_size: bool  # of all; never of those kept as planes: a grey one among many may not have been looked at
    costs: SampleCosts | None


def probe_samples(recipe: BatchPlan, with_costs: bool) -> Probed:
    """Read and decode a few samples, spread over the split."""
    count = len(recipe.split)
    some = min(count, _SIZED)
    ids = np.arange(some) * (count - 1) // max(1, some - 1)
    answers, read_seconds = [], []
    for source in recipe.split.locate(ids):
        started = time.perf_counter()
        answers.append(read_source(source))
        read_seconds.append(time.perf_counter() - started)
    blobs, sizes, in_planes = [], [], False
    for answer in answers:
        with suppress(Undecodable):
            if not isinstance(answer, StorageError):
                kept, pixels = _decoded_bytes(answer)
                sizes.append(kept)
                blobs.append(answer)
                in_planes |= kept < 3 * pixels
    timed = slice(None, None, max(1, len(blobs) // _TIMED))
    costs = _measure(recipe, blobs[timed], sum(sizes[timed]), median(read_seconds or [0.0])) if with_costs else None
    return Probed(float(np.mean(sizes)) if sizes else 0.0, len(set(sizes)) <= 1 and not in_planes, costs)


def _decoded_bytes(blob: bytes | memoryview) -> tuple[int, int]:
    """Bytes as they would be kept, and pixels; by its header alone, unless that promises more than so many can hold."""
    width, height, _ = (native.jpeg_size(blob) if native is not None else None) or (0, 0, 0)
    if native is not None and 0 < width * height <= 512 * len(blob):
        return int(native.kept_bytes(blob)), width * height
    decoded = decode_pixels(blob)
    return decoded.nbytes, decoded.nbytes // 3


def _measure(
    recipe: BatchPlan, blobs: list[bytes | memoryview], decoded_bytes: int, read_seconds: float
) -> SampleCosts | None:
    """None where the compiled decoder has no part in it: then cropping decodes the whole picture too."""
    if native is None or recipe.view.crop == "raw" or not blobs:
        return None
    # a first huge page may cost as much as all of these pictures, and says little about many more
    arena, side = memory_arena(len(blobs), decoded_bytes, huge_pages=False), recipe.view.side(0)
    rows, status = np.arange(len(blobs)), np.zeros(len(blobs), np.int32)
    images = np.full((len(blobs), 3, side, side), 0, np.uint8)  # written: their pages are there before the clock runs
    geometry = draw(recipe.view, recipe.seed, 0, rows).geometry

    def seconds(first: int, sources: object, shapes: object = None, keep: object = None) -> float:
        started = time.thread_time()  # of this core: other work on the machine does not count
        native.load_slice(sources, shapes, geometry[first:], side, 0, images[first:], status[first:], keep)
        return (time.thread_time() - started) / (len(blobs) - first)

    seconds(len(blobs) - 1, blobs[-1:])  # code and tables that are met for the first time
    crop, fill = seconds(0, blobs), seconds(0, blobs, None, (arena.shared, rows))
    offsets, lengths, shapes = arena.find(rows)
    if not (good := shapes[:, 0] > 0).all():  # once more, without what is Pillow's to decode or to refuse
        return _measure(recipe, [blobs[slot] for slot in np.flatnonzero(good)], decoded_bytes, read_seconds)
    kept = seconds(0, ([arena.pixels], np.zeros(len(blobs), np.int32), offsets, lengths), shapes)
    return SampleCosts(read_seconds + crop, read_seconds + fill, kept)
