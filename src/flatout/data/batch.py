"""A batch, and the one protocol through which the training loop gets batches."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flatout.data.pixels.draws import Mix
from flatout.storage.counters import StoreCounters

if TYPE_CHECKING:
    import torch

    from flatout.decisions import Change
    from flatout.decisions.loading import DataDecisions


@dataclass
class LoadStats:
    """What preparing a batch took, summed over whoever did it in parallel."""

    fetch: float = 0.0
    decode: float = 0.0
    augment: float = 0.0
    collate: float = 0.0
    bytes_read: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    store_requests: int = 0  # to an object store, retries included
    store_bytes: int = 0

    def add(self, other: "LoadStats") -> None:
        mine = vars(self)
        for name, value in vars(other).items():
            mine[name] += value


class Work(NamedTuple):
    """A stretch of time a worker spent on one batch, by time.perf_counter, for the lanes of the timeline."""

    worker: str
    stage: str
    start: float
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A sample that could not be used, and why."""

    sample_id: int
    name: str
    reason: str


class Digested(NamedTuple):
    """Digests of the files that a batch was read from; not of what was decoded before."""

    ids: NDArray[np.int64]
    digests: NDArray[np.uint64]  # [samples, 2]


@dataclass
class Prepared:
    """A batch as numpy arrays: what a worker hands over."""

    epoch: int
    index: int
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    sample_ids: NDArray[np.int64]
    mix: Mix | None
    failures: list[Failure]
    stages: LoadStats
    work: list[Work] = field(default_factory=list)
    digested: Digested | None = None


@dataclass
class Batch:
    """A batch as tensors: uint8 NCHW images, int64 labels, int64 sample ids. Normalise on the device."""

    epoch: int
    index: int
    images: "torch.Tensor"
    labels: "torch.Tensor"
    sample_ids: "torch.Tensor"
    mix: Mix | None = None
    failures: list[Failure] = field(default_factory=list)
    stages: LoadStats = field(default_factory=LoadStats)
    whole_ids: "torch.Tensor | None" = None  # of the global batch, unusable ones included, where this is a slice of it


class AnyBatch(Protocol):
    """What the engine knows of a batch: where it stands, and which samples are in it."""

    epoch: int
    index: int
    sample_ids: "torch.Tensor"
    failures: list[Failure]
    whole_ids: "torch.Tensor | None"


class AnySplit(Protocol):
    @property
    def total_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def name(self, sample_id: int) -> str:
        """Where a person finds the sample."""
        ...


class AnyDataset(Protocol):
    """What a run records of its dataset, whatever its samples are."""

    @property
    def fingerprint(self) -> str:
        """Of what is known when it is opened: that two differ is certain, that two are the same is not."""
        ...

    def content_fingerprint(self) -> str | None:
        """Of all that the samples hold; None until that is known."""
        ...

    def changed_names(self) -> tuple[str, ...]:
        """Samples that changed while they were in use, which the user accepts."""
        ...

    @property
    def total_bytes(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """None of them where labels are not classes."""
        ...

    @property
    def train(self) -> AnySplit: ...

    @property
    def val(self) -> AnySplit | None: ...

    def store_counters(self) -> StoreCounters:
        """Requests of this process to the object store so far; none where the data is local."""
        ...


class BatchSource(Protocol):
    """Batches in a fixed order. `epoch` may start in the middle; the source may prepare ahead of what is asked."""

    batches_per_epoch: int
    samples: int
    notes: tuple[str, ...]  # what was chosen, and why
    decided: "DataDecisions | None"  # the same as a value; None where nobody decides
    changes: "list[Change]"  # of what was decided, while it runs; only ever appended to
    quarantine: dict[int, Failure]
    stages: LoadStats
    memory_bytes: int  # at most, for batches and what is kept

    @property
    def stage_is_full(self) -> str | None:
        """Why no more samples are staged on the local disk; None while there is room, and where nothing is staged."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[AnyBatch]: ...

    def close(self) -> None: ...
