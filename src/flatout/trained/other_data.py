"""A trained model on a dataset that it was not trained with: classes are matched by name."""

from dataclasses import replace

import numpy as np

from flatout.data.loading.loader import choose_workers, open_loader
from flatout.data.loading.prepare import BatchPlan
from flatout.data.source.dataset import Dataset, Split, open_dataset
from flatout.errors import DataError
from flatout.tasks.setup import TaskSetup
from flatout.trained.opening import TrainedRun


def with_other_data(trained: TrainedRun, path: str, place: tuple[int, int] = (0, 1)) -> TrainedRun:
    """The same model, to be evaluated on the validation split at `path`, or on all of it where there is none.

    Classes may be missing there. One that the model does not know is refused, unless the run itself was trained on
    a part of the classes (data.classes): then it is left out there, too.
    """
    config, known = trained.config, trained.classes
    everything = config.data.model_copy(update={"path": path, "classes": None, "samples_per_class": None})
    dataset = open_dataset(everything)
    unknown = [name for name in dataset.classes if name not in known]
    if unknown and (config.data.classes is None or len(unknown) == len(dataset.classes)):
        raise DataError(
            f"{path} has a class {unknown[0]!r} that the run does not know; its {len(known)} classes are "
            f"{', '.join(known[:3])}{', …' if len(known) > 3 else ''}"
        )
    split = _relabelled(whole_or_validation(dataset), dataset.classes, known)
    rank, ranks = place
    size = config.validate_.batch_size or config.data.global_batch or config.data.batch_size
    plan = BatchPlan(split, trained.view, 0, size, shuffle=False, rank=rank, world_size=ranks, whole_batches=True)
    mapped = Dataset(path, known, split, split, dataset.notes)
    what = f"{len(split):,} samples of {path}"
    opened = TaskSetup(
        mapped,
        trained.task,
        plan,
        plan,
        what,
        size,
        len(known),
        lambda data, kind, chosen: choose_workers(data.workers, kind, chosen),
        open_loader,
    )
    return replace(trained, config=config.model_copy(update={"data": everything}), opened=opened)


def whole_or_validation(dataset: Dataset) -> Split:
    """Samples held out of a dataset without a validation split come from the reader of the others: then all count."""
    train, val = dataset.train, dataset.val
    if val is None:
        return train
    if val.reader is not train.reader:
        return val
    rows = np.concatenate([train.rows, val.rows])
    order = np.argsort(rows, kind="stable")
    labels, lengths = (
        np.concatenate(pair)[order] for pair in ((train.labels, val.labels), (train.lengths, val.lengths))
    )
    names = (*train.names, *val.names)
    ordered = tuple(names[at] for at in order.tolist())
    return Split(ordered, labels, lengths, train.reader, rows[order], train.origins)


def _relabelled(split: Split, classes: tuple[str, ...], known: tuple[str, ...]) -> Split:
    numbers = np.array([known.index(name) if name in known else -1 for name in classes], np.int64)
    labels = numbers[split.labels]
    ids = np.flatnonzero(labels >= 0)
    if not len(ids):
        raise DataError("no sample there is of a class that the run knows; give data with its classes")
    return split.take(ids, labels[ids])
