"""The pure function at the heart of flatout: (dataset, view, seed, epoch, index) -> batch. No torch in here,
so that a worker process starts in a fraction of a second."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import Digested, Failure, LoadStats, Prepared, Work
from flatout.data.loading.drawn_ids import Kept, drawn_ids
from flatout.data.loading.sample_cache import SampleCache, kept_pixels
from flatout.data.pixels.decode import Shrunk, Undecodable, decode_pixels, decode_shrunk, is_jpeg, native
from flatout.data.pixels.draws import Draws, Mix, draw, draw_mix
from flatout.data.pixels.reference import decode_scaled, place, place_raw, place_shrunk, recolour
from flatout.data.pixels.transforms import apply_transform
from flatout.data.pixels.views import View
from flatout.data.source.dataset import Split
from flatout.data.source.identity import CAN_DIGEST, digest_of, to_digest, were_digested, were_left_alone
from flatout.data.source.readers import Base, Extents, Source, read_source
from flatout.errors import ObjectMissing, StorageError
from flatout.sampling import batch_count, batch_ids, rank_slice
from flatout.timeline.core_wait import LANE, own_wait_seconds

NativeSources = (
    list[Source | StorageError | None] | tuple[list[Base], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]
)
_TO_DO = 1  # status of a slot; 0 is done, anything else is left to Pillow
DIGESTS = True  # benchmarks/hashing.py measures what they cost
_ENDS_WELL = 2  # for the compiled decoder: the same, of a file that was read to its end before


@dataclass(frozen=True)
class BatchPlan:
    """Everything that determines the batches of a job; small and picklable."""

    split: Split
    view: View
    seed: int
    batch_size: int
    shuffle: bool = True
    raw_shape: tuple[int, int] | None = None  # height, width of a raw view
    banned: tuple[int, ...] = ()  # samples that killed workers
    rank: int = 0
    world_size: int = 1
    whole_batches: bool = False  # a rank takes every world_size-th batch, instead of its slice of each
    min_batch: int = 1  # a last batch of fewer samples is left out
    balance: str = "off"  # or "classes": see sampling/balanced.py

    @cached_property
    def ends_well(self) -> NDArray[np.bool_]:
        """Samples whose files this process has read to their end: a crop need not be parsed beyond it again."""
        return np.zeros(len(self.split), np.bool_)

    @property
    def batches_per_epoch(self) -> int:
        samples = len(self.split)
        count = batch_count(samples, self.batch_size) - (0 < samples % self.batch_size < self.min_batch)
        return len(range(self.rank, count, self.world_size)) if self.whole_batches else count

    def shape(self, epoch: int) -> tuple[int, int, int, int]:
        """Shape of the images of a full batch, or of this rank's slice of one."""
        side, count = self.view.side(epoch), self.batch_size
        if not self.whole_batches:
            taken = rank_slice(count, self.rank, self.world_size)
            count = (
                taken.stop - taken.start + (2 if self.world_size > 1 else 0)
            )  # of a short batch it may be a pair more
        return (count, 3, *(self.raw_shape or (side, side)))

    def largest_bytes(self) -> int:
        """Of the images of a batch, in whichever epoch they are largest."""
        return max(math.prod(self.shape(epoch)) for epoch in (0, *(first for first, _ in self.view.sizes)))

    def ids(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Sample ids of one batch, as far as they are this rank's."""
        if self.whole_batches:
            return self.whole_ids(epoch, index * self.world_size + self.rank)
        whole = self.whole_ids(epoch, index)
        return whole[rank_slice(len(whole), self.rank, self.world_size)]

    def whole_ids(self, epoch: int, index: int) -> NDArray[np.int64]:
        """Sample ids of one global batch."""
        if not self.shuffle:
            first = index * self.batch_size
            return np.arange(first, min(first + self.batch_size, len(self.split)))
        return batch_ids(self._drawn(epoch)[0], index, self.batch_size)

    def keys(self, epoch: int, index: int) -> NDArray[np.int64]:
        """What the random numbers of each sample of `ids` go by: its id, but another one where it comes again."""
        if self.balance == "off" or not self.shuffle:
            return self.ids(epoch, index)
        whole = batch_ids(self._drawn(epoch)[1], index, self.batch_size)
        return whole[rank_slice(len(whole), self.rank, self.world_size)]

    def _drawn(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return drawn_ids(self.split.labels, self.seed, epoch, self.balance, self._kept)

    _kept = cached_property[Kept](lambda self: {})


@dataclass
class Fetched:
    """The samples of a batch before they are decoded; shapes are those of samples that are decoded already."""

    epoch: int
    index: int
    ids: NDArray[np.int64]
    keys: NDArray[np.int64]  # of the random numbers; see BatchPlan
    sources: Sequence[Source | StorageError]
    shapes: NDArray[np.int32] | None
    stages: LoadStats
    cache: SampleCache | None = None
    cache_rows: NDArray[np.int64] | None = None  # where the cache may keep each; -1: it has it
    expected: NDArray[np.uint8] | None = None  # digests of the bytes, where the store has them beforehand
    digests: NDArray[np.uint8] | None = None  # of the bytes as they are read; see to_digest()
    work: list[Work] = field(default_factory=list)


def prepare(
    recipe: BatchPlan,
    epoch: int,
    index: int,
    images: NDArray[np.uint8],
    cache: SampleCache | None = None,
    watch: Callable[[int], None] | None = None,
) -> Prepared:
    """Fill `images` (at least as long as the batch) and return the batch as views of it."""
    return assemble(recipe, fetch(recipe, epoch, index, cache), images, watch)


def fetch(recipe: BatchPlan, epoch: int, index: int, cache: SampleCache | None = None) -> Fetched:
    """The bytes of a batch's samples. A store that fails is not a bad sample: the error is raised."""
    started, stages, waited = time.perf_counter(), LoadStats(), own_wait_seconds()
    ids = recipe.ids(epoch, index)
    rows: NDArray[np.int64] | None = None
    shapes: NDArray[np.int32] | None
    if cache is not None:
        sources, shapes, rows = cache.locate(recipe.split, ids)
        stages.cache_misses = int(np.count_nonzero(rows >= 0))
        stages.cache_hits = len(ids) - stages.cache_misses
    else:
        sources, shapes = recipe.split.locate(ids), recipe.split.shapes(ids)
    for source in sources if not isinstance(sources, Extents) else ():
        if isinstance(source, StorageError) and not isinstance(source, ObjectMissing):
            raise source
    stages.fetch = time.perf_counter() - started
    fetched = Fetched(epoch, index, ids, recipe.keys(epoch, index), sources, shapes, stages, cache, rows)
    fetched.work += _stretches(started, LoadStats(), stages, waited)
    return fetched


def _stretches(started: float, before: LoadStats, stages: LoadStats, waited_before: float) -> list[Work]:
    """Each stage of a batch as one stretch: in truth they alternate, sample by sample. The rest is collate. What this
    thread waited for a core meanwhile is beside them."""
    worker, cursor = threading.current_thread().name.removeprefix("flatout-"), started
    work = []
    for stage in ("fetch", "decode", "augment"):
        seconds = getattr(stages, stage) - getattr(before, stage)
        if seconds > 0:
            work.append(Work(worker, stage, cursor, seconds))
            cursor += seconds
    rest = max(0.0, time.perf_counter() - cursor)
    stages.collate += rest
    waited = own_wait_seconds() - waited_before
    return [
        *work,
        Work(worker, "collate", cursor, rest),
        *([Work(LANE, worker, started, waited)] if waited > 0 else []),
    ]


def assemble(
    recipe: BatchPlan, fetched: Fetched, images: NDArray[np.uint8], watch: Callable[[int], None] | None = None
) -> Prepared:
    """Decode and augment what was fetched.

    `watch` is told each sample id before it is decoded, one by one in Python, so that a crash can be blamed on the
    right one; without it the compiled decoder takes the whole batch in one call.
    """
    started, before, waited = time.perf_counter(), LoadStats(**vars(fetched.stages)), own_wait_seconds()
    ids, sources, stages = fetched.ids, fetched.sources, fetched.stages
    drawn = draw(recipe.view, recipe.seed, fetched.epoch, fetched.keys)
    status = np.where(recipe.ends_well[ids], _ENDS_WELL, _TO_DO).astype(np.int32)
    _begin_digests(recipe.split, fetched)
    if native is not None and watch is None and recipe.view.crop != "raw":
        scaled = recipe.view.decode == "scaled"
        _load_compiled(_allowed(recipe, ids, sources), fetched, drawn, images, status, scaled)
        recipe.ends_well[ids] |= status == 0
    failures: dict[int, str] = {}
    for slot in np.flatnonzero(status).tolist():
        sample_id = int(ids[slot])
        if watch is not None:
            watch(sample_id)
        try:
            if sample_id in recipe.banned:
                raise Undecodable("decoding it killed three workers")
            _load_one(recipe, fetched, slot, drawn.geometry[slot], images[slot])
        except Undecodable as error:
            failures[slot] = str(error)
    if watch is not None:
        watch(-1)
    prepared = _finished(recipe, fetched, images, drawn, failures)
    prepared.digested = _end_digests(recipe.split, fetched, failures)
    prepared.work = [*fetched.work, *_stretches(started, before, stages, waited)]
    return prepared


def _begin_digests(split: Split, fetched: Fetched) -> None:
    """Say what is to be digested: every file that is read, but pixels of a decoded pack only once."""
    if not DIGESTS:
        return
    origins = split.origins
    passed_over = None if fetched.cache_rows is None else fetched.cache_rows < 0
    if origins.expected is not None:
        rows = split.rows[fetched.ids]
        if passed_over is None and fetched.shapes is not None:
            passed_over = origins.verified.take(rows)
            if bool(passed_over.all()):
                return
        fetched.expected = origins.expected[rows].view(np.uint8)
    fetched.digests = to_digest(fetched.expected, len(fetched.ids), passed_over)


def _digest_beforehand(sources: NativeSources, fetched: Fetched) -> NativeSources:
    """Where the compiled decoder cannot: files are read twice. What is not as expected it does not see."""
    assert fetched.digests is not None
    allowed: list[Source | StorageError | None] = list(fetched.sources if isinstance(sources, tuple) else sources)
    for slot in np.flatnonzero(~were_left_alone(fetched.digests)).tolist():
        source = allowed[slot]
        data = None if source is None else read_source(source)
        if data is not None and not isinstance(data, StorageError):
            fetched.digests[slot] = np.frombuffer(digest_of(data), np.uint8)
            allowed[slot] = data if _is_expected(fetched, slot) else None
    return allowed


def _is_expected(fetched: Fetched, slot: int) -> bool:
    """After it was digested."""
    if fetched.expected is None or fetched.digests is None:
        return True
    return bytes(fetched.expected[slot]) == bytes(fetched.digests[slot])


def _end_digests(split: Split, fetched: Fetched, failures: dict[int, str]) -> Digested | None:
    """What was learnt of the files; of a pack that knows its own, only that they are as they should be."""
    if fetched.digests is None:
        return None
    if fetched.expected is not None:
        if fetched.shapes is not None:
            read = were_digested(fetched.digests)
            read[list(failures)] = False
            split.origins.verified[split.rows[fetched.ids[read]]] = True
        return None
    words = fetched.digests.view(np.uint64)
    if fetched.cache_rows is None and bool(words.all()):  # all of them, as nearly always
        return Digested(fetched.ids, words)
    read = were_digested(fetched.digests)
    return Digested(fetched.ids[read], words[read])


def _allowed(recipe: BatchPlan, ids: NDArray[np.int64], sources: Sequence[Source | StorageError]) -> NativeSources:
    """What the compiled decoder may see: not the samples that killed workers."""
    banned = np.flatnonzero(np.isin(ids, recipe.banned)).tolist() if recipe.banned else []
    if isinstance(sources, Extents) and not banned:
        return sources.bases, sources.which, sources.offsets, sources.lengths
    allowed: list[Source | StorageError | None] = list(sources)
    for slot in banned:
        allowed[slot] = None
    return allowed


def _load_compiled(
    sources: NativeSources,
    fetched: Fetched,
    drawn: Draws,
    images: NDArray[np.uint8],
    status: NDArray[np.int32],
    scaled: bool,
) -> None:
    assert native is not None
    stages, cache, rows = fetched.stages, fetched.cache, fetched.cache_rows
    keep = None if cache is None or rows is None else cache.keep(rows)
    if fetched.digests is not None and not CAN_DIGEST:
        sources = _digest_beforehand(sources, fetched)
    fetch, decode, augment, bytes_read = native.load_slice(
        sources,
        fetched.shapes,
        drawn.geometry,
        images.shape[2],
        0,
        images[: len(status)],
        status,
        keep,
        scaled,
        fetched.digests,
    )
    stages.fetch += fetch
    stages.decode += decode
    stages.augment += augment
    stages.bytes_read += bytes_read


def _load_one(
    recipe: BatchPlan, fetched: Fetched, slot: int, geometry: NDArray[np.float64], out: NDArray[np.uint8]
) -> None:
    """The reference path: Pillow, or a decoder that gives the same pixels."""
    started, stages = time.perf_counter(), fetched.stages
    data = read_source(fetched.sources[slot])
    if isinstance(data, StorageError):
        if not isinstance(data, ObjectMissing):
            raise data
        raise Undecodable(str(data))
    are_pixels = fetched.shapes is not None and bool(fetched.shapes[slot][0])
    if not are_pixels:  # kept pixels were mapped, not read; the compiled decoder counts the same
        stages.bytes_read += len(data)
    if fetched.digests is not None and not bool(were_left_alone(fetched.digests[slot : slot + 1])[0]):
        fetched.digests[slot] = np.frombuffer(digest_of(data), np.uint8)
        if not _is_expected(fetched, slot):
            raise Undecodable(
                "its bytes are not those that the pack's index names: the pack was damaged, copy it again"
            )
    arrived = time.perf_counter()
    side, by_torch = out.shape[1], recipe.view.resizes_by_torch
    pixels: Shrunk | NDArray[np.uint8]
    if recipe.view.decode == "scaled":
        pixels = decode_scaled(data, geometry, side)
    elif are_pixels and fetched.shapes is not None:
        pixels = kept_pixels(data, *fetched.shapes[slot].tolist())
    elif fetched.cache is None and recipe.view.crop != "raw" and not is_jpeg(data):
        pixels = decode_shrunk(data, None)
    else:
        pixels = decode_pixels(data)
        if fetched.cache is not None and fetched.cache_rows is not None:
            fetched.cache.put(int(fetched.cache_rows[slot]), pixels)
    decoded = time.perf_counter()
    if isinstance(pixels, Shrunk):
        place_shrunk(pixels, geometry, side, out, by_torch)
    elif recipe.view.crop == "raw":
        place_raw(pixels, out)
    else:
        place(pixels, geometry, side, out, by_torch)
    stages.fetch += arrived - started
    stages.decode += decoded - arrived
    stages.augment += time.perf_counter() - decoded


def _finished(
    recipe: BatchPlan, fetched: Fetched, images: NDArray[np.uint8], drawn: Draws, failures: dict[int, str]
) -> Prepared:
    """Recolour what is there, close the gaps of what is not."""
    epoch, ids, stages = fetched.epoch, fetched.ids, fetched.stages
    good = [slot for slot in range(len(ids)) if slot not in failures] if failures else range(len(ids))
    if drawn.recolours:
        started = time.perf_counter()
        for slot in good:
            recolour(images[slot], drawn, slot, _fill(recipe.view))
        stages.augment += time.perf_counter() - started
    if recipe.view.transform:
        started = time.perf_counter()
        apply_transform(recipe.view, images, good, fetched.keys, recipe.seed, epoch)
        stages.augment += time.perf_counter() - started
    if failures:
        for new, old in enumerate(good):
            if new != old:
                images[new] = images[old]
    mix = draw_mix(recipe.view, recipe.seed, epoch, fetched.keys, images.shape[2])
    kept = ids[good] if failures else ids
    left_out = [Failure(int(ids[slot]), recipe.split.names[ids[slot]], reason) for slot, reason in failures.items()]
    return Prepared(
        epoch,
        fetched.index,
        images[: len(good)],
        recipe.split.labels[kept],
        kept,
        _compacted(mix, good),
        left_out,
        stages,
    )


def _fill(view: View) -> tuple[int, int, int]:
    red, green, blue = (round(255 * value) for value in view.mean)
    return red, green, blue


def _compacted(mix: Mix | None, good: Sequence[int]) -> Mix | None:
    """Follow the samples that are left; one whose partner was left out stays unmixed."""
    if mix is None or len(good) == len(mix.partner):
        return mix
    new_slot = {old: new for new, old in enumerate(good)}
    partner = np.array([new_slot.get(int(mix.partner[old]), new) for new, old in enumerate(good)], np.int64)
    alone = partner == np.arange(len(good))
    return Mix(
        partner, np.where(alone, 1, mix.keep[good]).astype(np.float32), np.where(alone[:, None], 0, mix.box[good])
    )
