"""What is known of a recipe's data, for machines that are not here: counted and measured where the data is here, made
up of the same size where only its sizes are given, and what is published of a known dataset."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.commands.traced_model import PAIR_TOKENS, keep, kept_file, read_kept
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.decisions.loading import is_url
from flatout.errors import ConfigError, FlatoutError
from flatout.machine.budgets import usable_cores
from flatout.planning.data_path import STORES, Samples
from flatout.units import format_bytes

if TYPE_CHECKING:
    from flatout.tasks.setup import TaskSetup

_MEASURE_SECONDS = 2.0
_LEAST_SAMPLES = 64
_MADE_SAMPLES = 32
_MEASURED_BATCH = 16
"""Small, because workers are in the middle of others when the last one counted comes out."""
_MOST_EPOCHS = 1000
_EXPANSION = 5.0
"""Bytes of decoded pixels for each byte of a JPEG photograph."""
_TEXT_SECONDS = 2e-5
"""Of cutting and padding one sentence pair: never a limit."""


@dataclass(frozen=True)
class Sizes:
    """A dataset by its published figures: mean bytes and pixels of a file."""

    samples: int
    validation: int
    classes: int
    bytes_each: float
    width: int
    height: int


KNOWN = {
    "imagenet": Sizes(1_281_167, 50_000, 1000, 110_000, 500, 375),
    "imagenet-100": Sizes(50_000, 1_000, 100, 107_000, 500, 375),
    "tiny-imagenet": Sizes(100_000, 10_000, 200, 2_000, 64, 64),
    "cifar10": Sizes(50_000, 10_000, 10, 1_400, 32, 32),
    "cifar100": Sizes(50_000, 10_000, 100, 1_400, 32, 32),
}
"""Names that `--data` takes besides a path."""


@dataclass(frozen=True)
class Facts:
    """Of the data, and the classes that a classifier's last layer has."""

    samples: Samples
    classes: int


def data_facts(config: Config, given: Sizes | None, store: str | None) -> Facts:
    """`given` are sizes or those of a known dataset; else the data itself is opened. `store` None: where it lies."""
    if store is not None and store not in STORES:
        raise ConfigError(f"--store is {store!r}; it must be one of {', '.join(STORES)}")
    where = store or ("s3" if is_url(config.data.path) else "local")
    if config.spec.batch_unit == "tokens":
        return _text_facts(config, given, where)
    if given is not None:
        return Facts(_made_up(config, given, where), given.classes)
    return _opened(config, where)


def _text_facts(config: Config, given: Sizes | None, store: str) -> Facts:
    """A sample of text is a pair of average length; its preparation costs next to nothing."""
    count = given.samples if given is not None else 0
    if given is None:
        count = len(_opened_task(config).dataset.train)
    samples = Samples(count, 0, 4.0 * 2 * PAIR_TOKENS, 0.0, _TEXT_SECONDS, 0.0, f"{count:,} sentence pairs", store)
    return Facts(samples, 0)


def _opened_task(config: Config) -> TaskSetup:
    """A dataset that is not here is one line that says what to give in its place."""
    from flatout.tasks.setup import open_task

    try:
        return open_task(config)
    except FlatoutError as error:
        raise ConfigError(
            f"the data of this recipe is not here ({error}); plan without it: --data {' | '.join(KNOWN)}, or "
            "--samples 1281167 --sample-bytes 110kB"
        ) from None


def _opened(config: Config, store: str) -> Facts:
    dataset = _opened_task(config).dataset
    count, held_out = len(dataset.train), len(dataset.val) if dataset.val is not None else 0
    each = dataset.total_bytes / max(1, count + held_out)
    key = {"fingerprint": dataset.fingerprint, "view": config.data.view, "measured": 2, "cores": usable_cores()}
    costs = _kept(key, lambda: measure_costs(config, _EXPANSION * each))
    basis = f"decoded here: {1e3 * costs.seconds:.2f} ms a sample of {format_bytes(each)} on one core"
    samples = Samples(
        count, held_out, each, costs.decode, costs.augment, costs.decoded_bytes, basis, store, costs.core_factor
    )
    return Facts(samples, len(dataset.classes))


def _made_up(config: Config, sizes: Sizes, store: str) -> Samples:
    """Pictures of the same size and bytes, decoded here."""
    from flatout.data.pixels.views import resolve_view

    view = resolve_view(config.data.view, config.views)
    key = {"sizes": asdict(sizes), "view": view.digest(), "measured": 2, "cores": usable_cores()}
    costs = _kept(key, lambda: _measure_made_up(config, sizes))
    basis = f"{1e3 * costs.seconds:.2f} ms a sample, measured here on made-up JPEGs of {sizes.width} x {sizes.height}"
    return Samples(
        sizes.samples,
        sizes.validation,
        sizes.bytes_each,
        costs.decode,
        costs.augment,
        costs.decoded_bytes,
        basis,
        store,
        costs.core_factor,
    )


@dataclass(frozen=True)
class Costs:
    """Processor seconds of one sample on one core of this machine, the others busy too."""

    decode: float
    augment: float
    decoded_bytes: float
    core_factor: float = 1.0

    @property
    def seconds(self) -> float:
        return self.decode + self.augment


def _kept(key: dict[str, object], measure) -> Costs:  # type: ignore[no-untyped-def]
    """Measured once on this machine for the same data and view."""
    path = kept_file("decoding", key)
    with suppress(TypeError):  # none, or of another version
        return Costs(**read_kept(path))
    costs: Costs = measure()
    keep(path, asdict(costs))
    return costs


def measure_costs(config: Config, decoded_bytes: float) -> Costs:
    """The loader's own path with every core at work, as a machine that waits for its data has them: caches and
    hyper-threads are shared then. By processor time: what other processes do here does not count."""
    from flatout.tasks.setup import open_task

    plain = {
        "data.workers": usable_cores(),
        "data.prefetch": "auto",
        "data.worker_kind": "auto",
        "data.cache": "off",
        "data.stage": "off",
        "data.global_batch": None,
        "data.batch_size": min(_MEASURED_BATCH, config.data.batch_size),
    }
    alone = load_config(config.model_dump(mode="json", by_alias=True), plain).config
    opened = open_task(alone)
    with closing(opened.open_source(opened.plan, alone.data, 0)) as source:
        batches = chain.from_iterable(map(source.epoch, range(_MOST_EPOCHS)))
        next(batches, None)  # the first waits for threads, tables and decoders to be set up
        began, busy, done = time.monotonic(), time.process_time(), 0
        while done < _LEAST_SAMPLES or time.monotonic() - began < _MEASURE_SECONDS:
            batch = next(batches, None)
            if batch is None:
                break
            done += len(batch.sample_ids)
        seconds = (time.process_time() - busy) / max(1, done)
        stages = source.stages
    share = stages.decode / max(1e-9, stages.decode + stages.augment)
    return Costs(seconds * share, seconds * (1 - share), decoded_bytes)


def _measure_made_up(config: Config, sizes: Sizes) -> Costs:
    with tempfile.TemporaryDirectory(prefix="flatout-plan-") as folder:
        write_pictures(Path(folder), sizes)
        changes = {"data.path": folder, "data.batch_size": 8}
        cleared = ("data.classes", "data.samples_per_class", "data.global_batch")
        changes.update(dict.fromkeys(cleared))
        recipe = config.model_dump(mode="json", by_alias=True)
        recipe.pop("parallel", None)
        return measure_costs(load_config(recipe, changes).config, 3.0 * sizes.width * sizes.height)


def write_pictures(folder: Path, sizes: Sizes, count: int = _MADE_SAMPLES) -> None:
    """Noise of a few pixels made large, finer until a file has as many bytes as the data's."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        for coarse in (16, 8, 4, 3, 2, 1):
            side = (max(1, sizes.height // coarse), max(1, sizes.width // coarse), 3)
            noise = Image.fromarray(random.integers(0, 256, side, dtype=np.uint8)).resize((sizes.width, sizes.height))
            noise.save(path, quality=88)
            if path.stat().st_size >= 0.8 * sizes.bytes_each:
                break
