"""Checkpoints that survive a kill at any moment: one safetensors file each, written beside and renamed.

A file holds every tensor and, in its header, the rest of the state as JSON with a digest over both. A reader trusts
a file only if the digest fits, and otherwise takes the next older one.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from flatout.engine.learner import state_digest
from flatout.errors import BadFile, CheckpointCorrupt, ConfigError, NoSpace
from flatout.units import format_bytes
from flatout.untrusted import check_shape, parse_json, require_regular, shortened

FORMAT = 1
KEEP_NEWEST = 2  # so that there is an older one to fall back to
_PROGRESS = (
    "epoch",
    "batch_index",
    "step",
    "samples_seen",
    "epoch_samples",
    "loss_samples",
    "validations_since_best",
    "best_epoch",
)
_STATE = {
    "step": "count",
    "progress": {
        **dict.fromkeys(_PROGRESS, "count"),
        **dict.fromkeys(("loss_sum", "best"), "figure"),
        "metrics": {},
        "ended": "flag",
    },
    "precision": {},
    "data_fingerprint": "text",
    "samples": {"train": "count"},
    "classes": ["text"],
    "attempt": "count",
    "global_batch": "count",
    "world_size": "count",
    "sources": {},
}
_SUFFIX, _TEMPORARY = ".safetensors", ".tmp"


@dataclass(frozen=True)
class Checkpoint:
    """A verified file, read."""

    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A file on disk, as far as retention needs to know it."""

    path: Path
    step: int
    metric: float | None


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write, force to disk, then rename into place: the file is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    tensor_digest = state_digest(contiguous)
    text = json.dumps({**state, "format": FORMAT, "step": step, "state_digest": tensor_digest})
    metadata = {"state": text, "digest": _digest(text, tensor_digest)}
    path = folder / f"step-{step:09d}{_SUFFIX}"
    temporary = path.with_suffix(_TEMPORARY)
    require_space(folder, sum(value.nbytes for value in contiguous.values()) + len(text) + 2**16)
    try:
        save_file(contiguous, temporary, metadata)
        _force_to_disk(temporary)
        os.replace(temporary, path)
        _force_to_disk(folder)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            temporary.unlink()
        raise NoSpace(
            f"cannot write the checkpoint {path}: {error}; free some space, the older ones are kept"
        ) from None
    _point(folder / f"last{_SUFFIX}", path)
    return path


def _metadata(path: Path) -> dict[str, str]:
    require_regular(path)
    with safe_open(path, "pt") as file:
        return file.metadata() or {}


def _parsed(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """The state in a file's header: whoever made the file can make a digest that fits it."""
    state = parse_json(metadata["state"], path, finite=False)
    if not isinstance(state, dict):
        raise BadFile(f"its state is {shortened(state)}, expected keys with values")
    check_shape(state, _STATE, path)
    if state.get("step") is None:
        raise BadFile("its state does not say which step it is of")
    return state


def load(path: Path) -> Checkpoint:
    """Read and verify one file."""
    try:
        metadata = _metadata(path)
        tensors = load_file(path)
        state = _parsed(metadata, path)
        intact = metadata["digest"] == _digest(metadata["state"], state_digest(tensors))
    except (OSError, SafetensorError, KeyError, ValueError, UnicodeDecodeError, BadFile) as error:
        raise CheckpointCorrupt(f"{path} cannot be read: {type(error).__name__}: {error}") from None
    if not intact:
        raise CheckpointCorrupt(f"{path} does not match its digest; it was changed or damaged after it was written")
    return Checkpoint(path, tensors, state)


def is_ours(path: Path) -> bool:
    """Whether the header says that it is a checkpoint of flatout; `load` verifies it."""
    with suppress(OSError, SafetensorError, BadFile):
        return {"state", "digest"} <= _metadata(path).keys()
    return False


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest file that verifies, and a note for each newer one that did not. Clears half-written files."""
    notes: list[str] = []
    for stale in folder.glob(f"*{_TEMPORARY}"):
        stale.unlink(missing_ok=True)
    for path in sorted(folder.glob(f"step-*{_SUFFIX}"), reverse=True):
        try:
            return load(path), notes
        except CheckpointCorrupt as error:
            damaged = path.with_suffix(".damaged")
            os.replace(path, damaged)  # never counted as the newest again
            notes.append(f"{error}; kept as {damaged.name}, falling back to the next older checkpoint")
    return None, notes


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of any safetensors file."""
    try:
        require_regular(path)
        return load_file(path)
    except FileNotFoundError:
        raise ConfigError(
            f"no weights at {path}; give a .safetensors, .pth or .pt file, or run:DIR for those of a run"
        ) from None
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is not a readable safetensors file: {error}") from None


def list_saved(folder: Path) -> list[Saved]:
    """Oldest first. Reads headers only."""
    found = []
    for path in sorted(folder.glob(f"step-*{_SUFFIX}")):
        with suppress(OSError, SafetensorError, KeyError, BadFile):
            state = _parsed(_metadata(path), path)
            metric = state.get("metric")
            found.append(Saved(path, state["step"], metric if isinstance(metric, int | float) else None))
    return found


def best_first(folder: Path, better: str) -> list[Saved]:
    """By metric; where none has one, by age, the newest first."""
    saved = list_saved(folder)
    return _by_metric(saved, better) or saved[::-1]


def superseded(saved: list[Saved], keep_top: int, better: str) -> list[Saved]:
    """Those that are neither among the newest nor among the best; a tie is won by the newer."""
    by_step = sorted(saved, key=lambda each: each.step)
    kept = {each.step for each in (*by_step[-KEEP_NEWEST:], *_by_metric(by_step, better)[:keep_top])}
    return [each for each in by_step if each.step not in kept]


def _by_metric(saved: list[Saved], better: str) -> list[Saved]:
    """Those that have one, the best first; a tie is won by the newer."""
    sign = 1 if better == "higher" else -1
    rated = [each for each in saved if each.metric is not None]
    return sorted(rated, key=lambda each: (sign * (each.metric or 0.0), each.step), reverse=True)


def prune(folder: Path, keep_top: int, better: str) -> None:
    """Delete what is superseded and point `best` at the best."""
    saved = list_saved(folder)
    for old in superseded(saved, keep_top, better):
        old.path.unlink(missing_ok=True)
    kept = _by_metric([each for each in saved if each.path.exists()], better)
    if kept:
        _point(folder / f"best{_SUFFIX}", kept[0].path)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Ask before writing: a full disk found half-way costs the write."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise NoSpace(
            f"a checkpoint needs {format_bytes(needed_bytes)} but {folder} has {format_bytes(free)} free; "
            "free some space, or put the run elsewhere with --run DIR"
        )


def _digest(state_text: str, tensor_digest: str) -> str:
    return hashlib.sha256(f"{tensor_digest} {state_text}".encode()).hexdigest()


def _force_to_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _point(link: Path, target: Path) -> None:
    """A relative link, replaced in one step."""
    temporary = link.with_suffix(_TEMPORARY)
    with suppress(OSError):  # a file system without links loses the convenience, nothing else
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target.name)
        os.replace(temporary, link)
