"""What is known of one DataLoader of the script: does it feed training, which epoch is it in, whose batch was whose."""

from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from torch.utils.data import IterableDataset


@dataclass
class LoaderUse:
    """Loaders over one dataset with one batch size are one: some scripts build theirs anew every epoch."""

    number: int
    facts: dict[str, Any]
    """Its settings, for the run's files."""
    shape: tuple[int, ...] = ()
    """Of its first batch."""
    trained: bool = False
    """A backward pass followed one of its batches."""
    validates: bool = False
    """One of its batches was taken for a pass without gradients."""
    waiting: list[int] = field(default_factory=list)
    """Samples of each batch that was taken and has not met its backward pass; some loops take one ahead."""
    passed_by: int = 0
    """Batches in a row that no backward pass followed."""
    epoch: int = -1
    """From 0; -1 before the first."""
    batch_index: int = -1
    """Of the newest batch, in its epoch."""
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    """For each batch, the step that it was fetched for."""
    assigned: int = 0
    """Batches whose preparation is written down."""
    built: int = 0
    """DataLoader objects that were seen."""
    _known: "WeakSet[Any]" = field(default_factory=WeakSet)

    def feeds_validation(self, grad_enabled: bool) -> bool:
        """Asked for when a batch is."""
        return not grad_enabled or (self.validates and not self.trained)

    def take_trained(self) -> int:
        """Samples of what a backward pass was for: the oldest batch that waits."""
        return self.waiting.pop(0)

    def take_left_behind(self) -> int:
        """Samples of what a step used beside: all that wait at its end but the one that was taken ahead."""
        taken, self.waiting = self.waiting[:-1], self.waiting[-1:]
        return sum(taken) if self.trained else 0

    def begin_pass_of(self, loader: Any) -> bool:
        """Whether its facts are others than before."""
        with suppress(Exception):  # a class of the script's own may not be hashed
            self.built += loader not in self._known
            self._known.add(loader)
        self.begin_pass()
        facts = {**loader_facts(loader), "rebuilt": self.built > 1 and 2 * self.built > self.epoch + 1}
        changed, self.facts = facts != self.facts, facts
        return changed

    def begin_pass(self) -> None:
        self.epoch, self.batch_index = self.epoch + 1, -1
        self.passed_by = 0
        self.waiting.clear()

    def take(self, samples: int, step: int, validating: bool) -> None:
        """A batch, for `step`. Those of validation wait for nothing, unless a backward pass shows that it is none."""
        self.steps.append(-1 if validating else step)
        self.batch_index += 1
        self.passed_by += 1
        if validating:
            self.validates = True
            self.waiting.clear()
        if not (validating and self.trained):
            self.waiting.append(samples)

    def may_train(self, newest: bool) -> bool:
        """Asked at a backward pass; `newest`: the last batch of all is this loader's."""
        return bool(self.waiting) and (not self.validates or self.trained or (newest and self.passed_by == 1))

    def step_of_next(self) -> int | None:
        """Of the next batch whose preparation is to be written down; None where it is not yet known."""
        if self.assigned >= len(self.steps):
            return None
        self.assigned += 1
        return self.steps[self.assigned - 1]


def use_of(loaders: "dict[tuple[int, int | None], LoaderUse]", loader: Any) -> LoaderUse:
    key = (id(getattr(loader, "dataset", None)), batch_size(loader))
    if key not in loaders:
        loaders[key] = LoaderUse(len(loaders), {})
    return loaders[key]


def loader_facts(loader: Any) -> dict[str, Any]:
    """What a fix would change, and what the data is. Never raises."""
    dataset = getattr(loader, "dataset", None)
    facts = {
        name: getattr(loader, name, None)
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    }
    root = getattr(dataset, "root", None)
    return {
        **facts,
        "batch_size": batch_size(loader),
        "dataset": type(dataset).__name__,
        "samples": _length(dataset),
        "root": str(root) if isinstance(root, str) or hasattr(root, "__fspath__") else None,
        "image_folder": _is_image_folder(dataset),
        "iterable": isinstance(dataset, IterableDataset),
    }


def batch_size(loader: Any) -> int | None:
    """As the loader was built, or its batch sampler; None where neither says."""
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(size := getattr(owner, "batch_size", None), int):
            return size
    return None


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # an iterable dataset, or anything else a user's __len__ may do
        return None


def _is_image_folder(dataset: Any) -> bool:
    """As torchvision's: a folder for each class, and (path, label) for each sample."""
    samples = getattr(dataset, "samples", None)
    return (
        isinstance(getattr(dataset, "root", None), str | bytes)
        and isinstance(samples, list)
        and bool(samples)
        and isinstance(samples[0], tuple)
    )


def shape_at_hand(batch: Any) -> tuple[int, ...]:
    """Of the first tensor in a batch that has any dimension; () where there is none, or it cannot be had."""
    try:
        return batch_shape(batch)  # type: ignore[no-any-return]
    except Exception:  # whatever a user's own class may do
        return ()


def batch_shape(batch: Any, depth: int = 0) -> Any:
    """As `shape_at_hand`, whatever the tensor is wrapped in."""
    inner: Any = batch
    if not isinstance(batch, (list, tuple)):
        if (shape := getattr(batch, "shape", None)) is not None:
            return shape
        inner = getattr(batch, "values", ())
    if depth < 4:
        for each in inner() if callable(inner) else inner:
            if found := batch_shape(each, depth + 1):
                return found
    return ()
