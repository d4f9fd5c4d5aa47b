"""The doctor's checks of store, class maps and a sample of images."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from flatout.config.schema import Config, DataConfig
from flatout.data.pixels.decode import Undecodable, decode_pixels
from flatout.data.pixels.views import resolve_view
from flatout.data.source.dataset import Dataset, Split, open_dataset
from flatout.data.source.readers import read_source
from flatout.data.text.parallel_text import open_parallel_text
from flatout.decisions.batches import choose_sample_batch
from flatout.errors import FlatoutError, StorageError
from flatout.units import format_bytes, format_seconds

_CONCURRENCIES = (1, 4, 16)
_READS, _READ_SECONDS = 48, 6.0
_SAMPLES = 64
_IMBALANCE = 20


@dataclass(frozen=True)
class CheckResult:
    """One thing that was looked at. `status` is ok, warning or problem."""

    area: str
    status: str
    text: str
    remedy: str | None = None


def check_data(config: Config) -> Iterator[CheckResult]:
    """Dataset and class maps, the speed of its store, a sample of its images; or the pairs of lines."""
    started = time.perf_counter()
    if not config.spec.has_images:
        yield _text(config)
        return
    try:
        dataset = open_dataset(config.data)
        for name in (config.data.view, config.data.eval_view):
            resolve_view(name, config.views)
    except FlatoutError as error:
        yield CheckResult(
            "data", "problem", str(error), "correct the dataset or data.path; flatout data audit looks closer"
        )
        return
    yield _classes(dataset, config.data, time.perf_counter() - started)
    yield from _speeds(dataset.train)
    yield _images(dataset)


def _text(config: Config) -> CheckResult:
    try:
        text = open_parallel_text(config.data)
    except FlatoutError as error:
        return CheckResult("data", "problem", str(error), "correct the files or data.path")
    said = (
        f"{len(text.train):,} training and {len(text.val):,} validation pairs from {' to '.join(text.languages)}, "
        f"{format_bytes(text.train.total_bytes + text.val.total_bytes)}, {len(text.vocabulary):,} word pieces"
    )
    bad = [failure for split in (text.train, text.val) for failure in split.failures.values()]
    if bad:
        return CheckResult(
            "data",
            "warning",
            f"{said}; {len(bad)} pairs cannot be used, the first: {bad[0].reason}",
            "they are left out and listed in quarantine.csv",
        )
    return CheckResult("data", "ok", said)


def _classes(dataset: Dataset, config: DataConfig, seconds: float) -> CheckResult:
    counts = Counter(dataset.train.labels.tolist())
    text = (
        f"{len(dataset.train):,} training and {len(dataset.val or ()):,} validation samples of {len(dataset.classes)} "
        f"classes, {format_bytes(dataset.total_bytes)}, listed in {format_seconds(seconds)}"
    )
    batch = choose_sample_batch(config, world_size=1)  # of one rank: how many there will be is not known here
    if batch.value > len(dataset.train):
        said = f"{text}; data.{batch.key} is {batch.value}"
        return CheckResult("data", "problem", said, f"set data.{batch.key} to at most {len(dataset.train)}")
    if len(dataset.classes) < 2:
        return CheckResult("data", "problem", text, "a classifier needs at least 2 classes")
    most, least = max(counts.values()), min(counts.values())
    if most > _IMBALANCE * least:
        return CheckResult(
            "data",
            "warning",
            f"{text}; the largest class has {most}, the smallest {least}",
            "expect a poor accuracy on the small ones",
        )
    return CheckResult("data", "ok", text)


def _speeds(split: Split) -> Iterator[CheckResult]:
    """Reads samples of different parts of the split at several concurrencies, each for a few seconds at most."""
    ids = np.unique(np.linspace(0, len(split) - 1, _READS * len(_CONCURRENCIES)).astype(np.int64))
    for number, hands in enumerate(_CONCURRENCIES):
        chosen = ids[number :: len(_CONCURRENCIES)]
        if len(chosen):
            yield _speed(split, chosen, hands)


def _speed(split: Split, ids: np.ndarray, hands: int) -> CheckResult:
    deadline = time.perf_counter() + _READ_SECONDS

    def read(sample_id: int) -> tuple[float, int] | StorageError | None:
        started = time.perf_counter()
        if started > deadline:
            return None
        source = split.locate(np.array([sample_id]))[0]
        answer = read_source(source)
        return answer if isinstance(answer, StorageError) else (time.perf_counter() - started, len(answer))

    started = time.perf_counter()
    with ThreadPoolExecutor(hands) as pool:
        answers = list(pool.map(read, ids.tolist()))
    seconds = time.perf_counter() - started
    return _judge_speed(answers, seconds, hands)


def _judge_speed(answers: Sequence[tuple[float, int] | StorageError | None], seconds: float, hands: int) -> CheckResult:
    failed = [answer for answer in answers if isinstance(answer, StorageError)]
    if failed:
        return CheckResult(
            "store",
            "problem",
            f"{len(failed)} of {len(answers)} reads failed: {failed[0]}",
            "check credentials, bucket and network",
        )
    good = [answer for answer in answers if isinstance(answer, tuple)]
    if not good:
        return CheckResult(
            "store", "problem", f"no read ended within {_READ_SECONDS:g} s", "check the path to the store"
        )
    latencies = sorted(each for each, _ in good)
    rate = len(good) / seconds
    moved = sum(length for _, length in good) / seconds
    text = (
        f"{hands} at a time: {rate:.0f} samples/s, {format_bytes(moved)}/s, p50 "
        f"{format_seconds(latencies[len(latencies) // 2])}, slowest {format_seconds(latencies[-1])}"
    )
    if hands == max(_CONCURRENCIES) and rate < 100:
        return CheckResult("store", "warning", text, "a fast model will wait for it: stage the data, or pack it")
    return CheckResult("store", "ok", text)


def _images(dataset: Dataset) -> CheckResult:
    ids = np.unique(np.linspace(0, len(dataset.train) - 1, _SAMPLES).astype(np.int64))
    if dataset.train.shapes(ids) is not None:
        return CheckResult("images", "ok", "the pack holds decoded pixels")
    bad, sides, seconds = [], [], 0.0
    for sample_id, source in zip(ids.tolist(), dataset.train.locate(ids), strict=True):
        data = read_source(source)
        if isinstance(data, StorageError):
            bad.append(f"{dataset.train.names[sample_id]}: {data}")
            continue
        started = time.perf_counter()
        try:
            sides.append(decode_pixels(data).shape[:2])
        except Undecodable as error:
            bad.append(f"{dataset.train.names[sample_id]}: {error}")
        seconds += time.perf_counter() - started
    if bad:
        status = "problem" if len(bad) > 0.05 * len(ids) else "warning"
        return CheckResult(
            "images",
            status,
            f"{len(bad)} of {len(ids)} cannot be decoded, e.g. {bad[0]}",
            "flatout data audit lists them all",
        )
    each = seconds / len(ids)
    largest = max(sides, key=lambda side: side[0] * side[1])
    text = f"{len(ids)} looked at, up to {largest[1]}x{largest[0]}, decoded in {format_seconds(each)} each on one core"
    return CheckResult("images", "ok", text)
