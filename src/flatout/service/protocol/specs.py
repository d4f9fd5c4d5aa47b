"""What determines a stream of batches, as plain values: enough to name it, and to make its batches elsewhere.

This is the one place of the service that knows that batches are made of images: everything else moves named arrays.
"""

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from flatout.cache.bundle import capacity_for
from flatout.config.schema import DataConfig
from flatout.data.batch import Digested, Failure, LoadStats, Prepared, Work
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.loading.sample_cache import SampleCache
from flatout.data.loading.staging import is_remote, staged
from flatout.data.loading.tiers import choose_cache
from flatout.data.pixels.draws import Mix
from flatout.data.pixels.views import View
from flatout.data.source.class_lists import listed_classes
from flatout.data.source.dataset import Split, open_dataset
from flatout.data.source.identity import DIGEST_BYTES, are_equal, are_known, as_words
from flatout.decisions.loading import is_url, orders_in_flight
from flatout.errors import ConfigError, DataError
from flatout.service.protocol.stream_spec import StreamSpec

_MIX_BYTES = 8 + 4 + 4 * 8  # of one sample: partner, share, box
_META_BYTES, _META_BYTES_PER_SAMPLE = 4096, 320  # room for the reason why each sample was left out
_KINDS = (np.dtype(np.uint8), 4, np.dtype(np.int64), np.dtype(np.int64))  # images, their axes, labels, ids
_SECONDS = 4  # the first fields of LoadStats are seconds, the others counts
_NUMBERS = struct.Struct("<QQ")
_PLAN_FIELDS = (
    "seed",
    "batch_size",
    "shuffle",
    "raw_shape",
    "rank",
    "world_size",
    "whole_batches",
    "min_batch",
    "balance",
)
"""Of BatchPlan, and under the same names of StreamSpec."""
_stream_bytes = lru_cache(maxsize=64)(bytes.fromhex)


_DATA_KEYS = ("samples_per_class", "holdout", "cache", "stage", "layout", "split", "unlisted", "label_column")
"""Of the recipe's section, beside the path and the classes."""


class AnotherDataset(DataError):
    """Two processes see different data under the same path."""


def describe(plan: BatchPlan, config: DataConfig, split: str) -> StreamSpec:
    """The spec of a plan's batches; a plan beyond the limits of what services make is a ConfigError."""
    data = {
        "path": config.path if is_url(config.path) else os.path.abspath(config.path),
        "classes": listed_classes(config.classes),
        **{name: getattr(config, name) for name in _DATA_KEYS},
    }
    values = {
        "data": data,
        "split": split,
        "content": content_digest(plan.split),
        "view": plan.view.digest(),
        "view_values": plan.view.elsewhere(),
        **{name: getattr(plan, name) for name in _PLAN_FIELDS},
    }
    try:
        return StreamSpec.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"batches of this recipe cannot be shared: {'.'.join(map(str, first['loc']))} is {first['input']!r}: "
            f"{first['msg']}; change it, or set data.shared=off"
        ) from None


def content_digest(split: Split) -> str:
    """Equal only where labels and bytes of all samples are proven the same: by what the file system or object store
    says of the files (then every process must see the same ones), or by the digests in a pack (then a copy will do)."""
    return split.origin_digest()


def stream_name(spec: StreamSpec) -> str:
    """Digest of everything that determines the batches; where the files are is not part of it."""
    values = spec.model_dump(exclude={"data", "view_values", "split"})
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def checked_view(spec: StreamSpec) -> View:
    """The view; a DataError where it would give other pixels here than those that the spec's digest stands for."""
    view = View(**spec.view_values.model_dump())
    if view.digest() != spec.view:
        raise DataError(
            f"view {view.name!r} gives other pixels here; use the same flatout, Pillow and torch everywhere"
        )
    return view


def batch_key(stream: str, epoch: int, index: int) -> bytes:
    """The key of one batch in a store: a digest of fields of fixed width, so that no two batches have the same."""
    return hashlib.sha256(_stream_bytes(stream) + _NUMBERS.pack(epoch, index)).digest()


def batch_bytes(plan: BatchPlan) -> int:
    """Size of a buffer for the largest batch of any epoch."""
    small = plan.batch_size * (8 + 8 + _MIX_BYTES + 8 + DIGEST_BYTES)
    meta = _META_BYTES + plan.batch_size * _META_BYTES_PER_SAMPLE
    return capacity_for(plan.largest_bytes() + small, 10, meta)


@dataclass(frozen=True)
class ImagePreparer:
    """Makes batches of one stream into given buffers. Safe to use from several threads."""

    plan: BatchPlan
    cache: SampleCache | None
    in_flight: int
    """1, or more where time goes into waiting for data: a producer then starts `in_flight - 1` more threads."""

    def prepare(
        self, epoch: int, index: int, space: NDArray[np.uint8]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Named arrays (large ones within `space`) and metadata that JSON can hold."""
        shape = self.plan.shape(epoch)
        images = space[: prod(shape)].reshape(shape)
        return flatten(prepare(self.plan, epoch, index, images, self.cache))


def open_preparer(spec: StreamSpec) -> ImagePreparer:
    """Open the data that a spec names. Data with another digest is an AnotherDataset, another view a DataError."""
    view, data = checked_view(spec), spec.data
    dataset = open_dataset(SimpleNamespace(**data.model_dump()))  # type: ignore[arg-type]
    split = dataset.train if spec.split == "train" else dataset.val
    if split is None or content_digest(split) != spec.content:
        raise AnotherDataset(
            f"{data.path} holds {0 if split is None else len(split)} {spec.split} samples here that are not the "
            "ones the job sees: the files differ or have changed; use the same data everywhere and start again"
        )
    split, _, _ = staged(split, data.stage)
    recipe = BatchPlan(split, view, **{name: getattr(spec, name) for name in _PLAN_FIELDS})
    cache = choose_cache(data.cache, recipe, "thread").store
    return ImagePreparer(recipe, cache, orders_in_flight(is_remote(split)))


def flatten(prepared: Prepared) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """A batch of images as named arrays and metadata; `assemble` is the inverse."""
    arrays: dict[str, NDArray[Any]] = {}
    arrays |= {"images": prepared.images, "labels": prepared.labels, "sample_ids": prepared.sample_ids}
    if prepared.mix is not None:
        arrays |= {f"mix.{name}": value for name, value in vars(prepared.mix).items()}
    figures: list[float] = list(vars(prepared.stages).values())
    seconds: list[float] = []
    for each in prepared.work:
        seconds += each[2:]
    arrays["seconds"] = np.array(figures[:_SECONDS] + seconds)
    arrays["counts"] = np.array(figures[_SECONDS:], np.int64)
    if prepared.digested is not None:
        arrays |= {"digested.ids": prepared.digested.ids, "digested.digests": prepared.digested.digests.view(np.uint8)}
    failures = [[each.sample_id, each.name, each.reason] for each in prepared.failures]
    return arrays, {"failures": failures, "work": [each[:2] for each in prepared.work]}


def check_samples(prepared: Prepared, wanted: NDArray[np.int64]) -> None:
    """Raise ValueError unless the batch holds the wanted samples, but for those it names as failures."""
    left_out = [each.sample_id for each in prepared.failures]
    expected = wanted[~np.isin(wanted, left_out)] if left_out else wanted
    if len(expected) + len(left_out) != len(wanted) or not np.array_equal(prepared.sample_ids, expected):
        raise ValueError(f"the batch holds {len(prepared.sample_ids)} samples that are not the {len(wanted)} asked for")


def check_contents(prepared: Prepared, split: Split, wanted: NDArray[np.int64]) -> None:
    """Raise ValueError if the batch was made of other bytes than this job has read under the same names."""
    if prepared.digested is not None:
        if not bool(np.isin(prepared.digested.ids, wanted).all()):
            raise ValueError("the batch has digests of samples that are not in it")
        known = split.known_digests_of(prepared.digested.ids)
        if bool((are_known(known) & ~are_equal(known, prepared.digested.digests)).any()):
            raise ValueError("the batch was made of other bytes than this job has read under the same names")


def assemble(epoch: int, index: int, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Prepared:
    """Inverse of `flatten`; what is missing or of a wrong type is a KeyError, TypeError or ValueError."""
    mix = None
    if "mix.partner" in arrays:
        mix = Mix(arrays["mix.partner"], arrays["mix.keep"], arrays["mix.box"])
    digested = None
    if "digested.ids" in arrays:
        ids, digests = arrays["digested.ids"], arrays["digested.digests"]
        if ids.dtype != np.int64 or digests.dtype != np.uint8 or digests.shape != (len(ids), DIGEST_BYTES):
            raise ValueError(f"a batch has {DIGEST_BYTES} bytes for the digest of each file")
        digested = Digested(ids, as_words(digests))
    images, labels, sample_ids = arrays["images"], arrays["labels"], arrays["sample_ids"]
    kinds = (images.dtype, images.ndim, labels.dtype, sample_ids.dtype)
    if kinds != _KINDS or not len(images) == len(labels) == len(sample_ids):
        raise ValueError("a batch has images, labels and ids of equal number")
    failures = [Failure(int(number), str(name), str(reason)) for number, name, reason in meta["failures"]]
    seconds, counts = arrays["seconds"].tolist(), arrays["counts"].tolist()
    starts, lengths = seconds[_SECONDS::2], seconds[_SECONDS + 1 :: 2]
    work = [
        Work(worker, stage, start, length)
        for (worker, stage), start, length in zip(meta["work"], starts, lengths, strict=True)
    ]
    stages = LoadStats(*seconds[:_SECONDS], *counts)
    return Prepared(epoch, index, images, labels, sample_ids, mix, failures, stages, work, digested)
