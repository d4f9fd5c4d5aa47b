"""Where a run goes on: the newest good checkpoint, and whether today's command still fits it."""

from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from torch import Tensor

from flatout.config.loading import differences as config_differences
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.data.batch import AnyDataset
from flatout.data.pixels.decode import decoder_name
from flatout.engine import checkpoint
from flatout.engine.parallel import Parallel
from flatout.engine.progress import Progress
from flatout.errors import ConfigError, DataError, RunDirectoryError
from flatout.runs import RunDirectory
from flatout.runs.directory import read_json
from flatout.training.data_identity import Differences

_SHOWN = 3  # of the classes that changed


_NEEDED = ("progress", "precision", "data_fingerprint", "samples")  # of a checkpoint, to go on from it


@dataclass(frozen=True)
class Resumed:
    """The state to start from; `tensors` is None for a run that has none yet."""

    progress: Progress
    tensors: dict[str, Tensor] | None = None
    precision: dict[str, Any] = field(default_factory=dict)
    data_fingerprint: str | None = None
    train_samples: int | None = None
    previous: Config | None = None
    global_batch: int | None = None
    classes: tuple[str, ...] | None = None  # in the order of their labels; None for a checkpoint that does not say
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)  # of the user's own code


def precision_so_far(directory: RunDirectory) -> str | None:
    """What a run that goes on was trained in; its config.yaml never says auto. None for one that begins."""
    if not directory.exists or not checkpoint.list_saved(directory.checkpoints):
        return None
    return load_config(directory.config).config.train.precision


def find_resume_point(directory: RunDirectory, config: Config) -> Resumed:
    """Read the newest checkpoint that verifies, and say what differs from the run's configuration so far."""
    found, problems = checkpoint.load_newest(directory.checkpoints)
    previous = load_config(directory.config).config if directory.exists else None
    notes = [*problems, *(_changes(previous, config) if previous is not None else [])]
    if found is None:
        return Resumed(Progress(), previous=previous, notes=tuple(notes))
    if missing := [key for key in _NEEDED if found.state.get(key) is None]:
        raise RunDirectoryError(f"the checkpoint {found.path} does not say {missing[0]}; remove it, or use --fresh")
    known = {each.name for each in fields(Progress)}
    told = found.state["progress"].items()
    progress = Progress(**{name: value for name, value in told if name in known and value is not None})
    notes += _other_decoder(directory, config)
    notes.append(f"resuming {directory.root} at step {progress.step} (epoch {progress.epoch + 1})")
    return Resumed(
        progress,
        found.tensors,
        found.state["precision"],
        found.state["data_fingerprint"],
        found.state["samples"].get("train"),
        previous,
        found.state.get("global_batch"),
        tuple(found.state["classes"]) if "classes" in found.state else None,
        tuple(notes),
        {str(key): str(value) for key, value in (found.state.get("sources") or {}).items()},
    )


def _other_decoder(directory: RunDirectory, config: Config) -> list[str]:
    """A note where another decoder is in use than before: batches are bit-equal only with the same one."""
    before = read_json(directory.environment).get("decoder")
    if not config.spec.has_images or before in (None, decoder_name()):
        return []
    return [f"images were decoded by {before} until now, and are by {decoder_name()}: pixels may differ by 1 of 255"]


def check_compatible(
    resumed: Resumed,
    config: Config,
    dataset: AnyDataset,
    accept_changed_data: bool,
    global_batch: int,
    differences: Differences | None = None,
) -> list[str]:
    """Refuse what would silently train something else than the user thinks; returns a note on what was accepted."""
    if resumed.tensors is None:
        return []
    old, then = resumed.previous, resumed.global_batch
    alone = config.parallel.mode == "single" and config.data.global_batch is None
    for key, before, now in (
        (config.batch_key if alone or config.spec.batch_unit == "tokens" else "data.global_batch", then, global_batch),
        ("data.max_tokens", (old or config).data.max_tokens, config.data.max_tokens),
    ):
        if resumed.progress.batch_index and before not in (None, now):
            raise ConfigError(
                f"{key} changed from {before} to {now} in the middle of epoch {resumed.progress.epoch + 1}: samples "
                f"would be skipped or repeated; resume with {before} until the epoch ends, or use --fresh"
            )
    if old is not None and old.data.vocabulary != config.data.vocabulary:
        raise ConfigError(
            f"data.vocabulary changed from {_shown(old)} to {_shown(config)}, but the run's weights belong to the "
            "words it began with; use the old one, or --fresh"
        )
    if old is not None and old.train.seed != config.train.seed:
        raise ConfigError(
            f"train.seed changed from {old.train.seed} to {config.train.seed}: the order of samples would change in "
            "the middle of a run; use the old seed, or --fresh"
        )
    changed = _changed_data(resumed, dataset, differences)
    if changed is None:
        return []
    if not accept_changed_data:
        raise DataError(f"{changed}; restore it, start with --fresh, or go on with --accept-changed-data")
    return [f"{changed}; accepted with --accept-changed-data"]


def _changed_data(resumed: Resumed, dataset: AnyDataset, differences: Differences | None) -> str | None:
    changes, files = [], "" if differences is None else str(differences)
    if resumed.data_fingerprint != dataset.fingerprint:
        changes.append(
            f"{resumed.train_samples} training samples then, {len(dataset.train)} now "
            f"(fingerprint {str(resumed.data_fingerprint)[:8]} is now {dataset.fingerprint[:8]})"
        )
    if changes and files:
        changes.append(files)
    if resumed.classes is not None and resumed.classes != dataset.classes:
        changes.append(_changed_classes(resumed.classes, dataset.classes))
    return f"the dataset changed since the checkpoint: {'; '.join(changes)}" if changes else files or None


def _changed_classes(then: tuple[str, ...], now: tuple[str, ...]) -> str:
    """The weights belong to labels, not to names: another name at a label is another class."""
    pairs = [(label, *names) for label, names in enumerate(zip_longest(then, now)) if names[0] != names[1]]
    first = ", ".join(f"{label} was {old!r} and is {new!r}" for label, old, new in pairs[:_SHOWN])
    more = f", and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    counts = f" ({len(then)} classes then, {len(now)} now)" if len(then) != len(now) else ""
    return f"class {first}{more}{counts}"


def broadcast_resume_point(found: Resumed | None, ranks: Parallel) -> Resumed:
    """Rank 0's resume point on every rank: one agreed step, and no need for all to read its disk.

    `found` is None on the other ranks.
    """
    own = Resumed(Progress()) if found is None else found
    head = [vars(own.progress), own.precision, own.tensors is not None]
    progress, precision, has_tensors = ranks.group.from_main(head)
    tensors = ranks.group.tensors_from_main(own.tensors) if has_tensors else None
    return own if found is not None else Resumed(Progress(**progress), tensors, precision)


def _shown(config: Config) -> str:
    return f"{config.data.vocabulary.kind} of {config.data.vocabulary.size}"


def _changes(old: Config, new: Config) -> list[str]:
    return [
        f"{key} changed from {before!r} to {after!r} since the run began: the new value is used"
        for key, before, after in config_differences(old, new)
    ]
