"""The pure function at the heart of flatout: (dataset, view, seed, epoch, index) -> batch. No torch in here,
so that a worker process starts in a fraction of a second."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import Failure, Prepared, StageSeconds
from flatout.data.dataset import Split
from flatout.data.decode import Undecodable, decode_image
from flatout.data.draws import Draws, Mix, draw, draw_mix
from flatout.data.pixels import place, place_raw, recolour
from flatout.data.views import View
from flatout.errors import StorageError
from flatout.sampling import batch_count, batch_ids, epoch_order


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the batches of a job; small and picklable."""

    split: Split
    view: View
    seed: int
    batch_size: int
    shuffle: bool = True
    raw_shape: tuple[int, int] | None = None  # height, width of a raw view
    banned: tuple[int, ...] = ()  # samples that killed workers

    @property
    def batches_per_epoch(self) -> int:
        return batch_count(len(self.split), self.batch_size)

    def shape(self, epoch: int, count: int | None = None) -> tuple[int, int, int, int]:
        """Shape of the images of a full batch."""
        side = self.view.side(epoch)
        return (count or self.batch_size, 3, *(self.raw_shape or (side, side)))

    def ids(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Sample ids of one batch."""
        if not self.shuffle:
            first = index * self.batch_size
            return np.arange(first, min(first + self.batch_size, len(self.split)))
        return batch_ids(_order(len(self.split), self.seed, epoch), index, self.batch_size)


@lru_cache(maxsize=4)  # two epochs, for training and for looking ahead, of up to two jobs in one process
def _order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return epoch_order(samples, seed, epoch)


def prepare(
    recipe: Recipe, epoch: int, index: int, images: NDArray[np.uint8], watch: Callable[[int], None] = lambda _: None
) -> Prepared:
    """Fill `images` (at least as long as the batch) and return the batch as views of it.

    `watch` is told each sample id before it is decoded, so that a crash can be blamed on the right one.
    """
    stages = StageSeconds()
    ids = recipe.ids(epoch, index)
    started = time.perf_counter()
    answers = recipe.split.read(ids)
    stages.fetch = time.perf_counter() - started
    drawn = draw(recipe.view, recipe.seed, epoch, ids)
    good: list[int] = []
    failures: list[Failure] = []
    for slot, (sample_id, answer) in enumerate(zip(ids.tolist(), answers, strict=True)):
        try:
            watch(sample_id)
            if sample_id in recipe.banned:
                raise Undecodable("decoding it killed three workers")
            _prepare_one(recipe, answer, drawn, slot, images[len(good)], stages)
            good.append(slot)
        except Undecodable as error:
            failures.append(Failure(sample_id, recipe.split.names[sample_id], str(error)))
    watch(-1)
    mix = draw_mix(recipe.view, recipe.seed, epoch, ids, images.shape[2])
    kept = ids[good]
    return Prepared(
        epoch, index, images[: len(good)], recipe.split.labels[kept], kept, _compacted(mix, good), failures, stages
    )


def _prepare_one(
    recipe: Recipe, answer: bytes | StorageError, drawn: Draws, slot: int, out: NDArray[np.uint8], stages: StageSeconds
) -> None:
    if isinstance(answer, StorageError):
        raise Undecodable(str(answer))
    stages.bytes_read += len(answer)
    started = time.perf_counter()
    image = decode_image(answer)
    decoded = time.perf_counter()
    if recipe.view.crop == "raw":
        place_raw(image, out)
    else:
        place(image, drawn.geometry[slot], out.shape[1], out)
    recolour(out, drawn, slot, _fill(recipe.view))
    stages.decode += decoded - started
    stages.augment += time.perf_counter() - decoded


def _fill(view: View) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in view.mean)
    return red, green, blue


def _compacted(mix: Mix | None, good: list[int]) -> Mix | None:
    """Follow the samples that are left; one whose partner was left out stays unmixed."""
    if mix is None or len(good) == len(mix.partner):
        return mix
    new_slot = {old: new for new, old in enumerate(good)}
    partner = np.array([new_slot.get(int(mix.partner[old]), new) for new, old in enumerate(good)], np.int64)
    alone = partner == np.arange(len(good))
    return Mix(
        partner, np.where(alone, 1, mix.keep[good]).astype(np.float32), np.where(alone[:, None], 0, mix.box[good])
    )
