"""What the cache keeps, read without the compiled code that kept it."""

import numpy as np
import pytest
from small_datasets import encoded

from flatout.cache.arena import memory_arena
from flatout.data.loading.sample_cache import SampleCache, kept_pixels
from flatout.data.pixels.decode import decode_pixels, native
from flatout.data.pixels.draws import draw
from flatout.data.pixels.views import SHIPPED

SIZES = [(64, 64), (65, 63), (33, 50), (90, 131), (17, 200), (5, 40)]


def noisy(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.skipif(native is None, reason="only compiled code keeps planes")
@pytest.mark.parametrize(
    "options", [{"subsampling": "4:2:0"}, {"subsampling": "4:2:0", "progressive": True}, {"subsampling": "4:4:4"}]
)
def test_kept_pictures_are_those_of_pillow(options: dict[str, object]) -> None:
    blobs = [encoded(noisy(*size), quality=80, **options) for size in SIZES]
    rows = np.arange(len(blobs))
    arena = memory_arena(len(blobs), 10**6)
    images, status = np.zeros((len(blobs), 3, 64, 64), np.uint8), np.zeros(len(blobs), np.int32)
    geometry = draw(SHIPPED["train-64"], 0, 0, rows).geometry
    native.load_slice(blobs, None, geometry, 64, 0, images, status, SampleCache(arena).keep(rows))
    offsets, lengths, shapes = arena.find(rows)
    assert arena.used_bytes == lengths.sum()
    assert (shapes[:, 1] < 0).sum() == (
        0 if options["subsampling"] == "4:4:4" else 5
    )  # whole blocks of 5 x 40 are more
    for blob, offset, length, shape in zip(blobs, offsets, lengths, shapes, strict=True):
        kept = kept_pixels(arena.pixels[offset : offset + length], *shape.tolist())
        assert np.array_equal(kept, decode_pixels(blob))
