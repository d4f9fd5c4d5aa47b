"""Weights from where people have them: safetensors, torch files without a pickle's code, runs of flatout."""

import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flatout.config.loading import load_config
from flatout.config.tasks import metric_named
from flatout.engine import checkpoint
from flatout.engine.learner import under
from flatout.errors import BadFile, ConfigError, FlatoutError
from flatout.untrusted import require_regular

RUN = "run:"
_TORCH = (".pth", ".pt", ".bin", ".ckpt")
_NESTED = ("state_dict", "model_state_dict", "model", "net", "module", "weights")
"""Where training scripts keep the weights in what they save."""


@dataclass(frozen=True)
class FoundWeights:
    """Tensors by name, and what is known of them."""

    tensors: dict[str, Tensor]
    what: str  # for messages
    classes: tuple[str, ...] | None = None  # what the outputs mean, in the order of labels; None where nothing says so
    averaged: bool = False


def read_weights(source: str | Path) -> FoundWeights:
    """Of a file or run:DIR; anything that is not weights is a ConfigError that says what to do."""
    text = str(source)
    path = _of_run(Path(text.removeprefix(RUN)).expanduser()) if text.startswith(RUN) else Path(text).expanduser()
    if path.is_dir():
        raise ConfigError(f"the weights at {path} are a folder; write {RUN}{path} for a run's best, or name a file")
    if path.suffix in _TORCH:
        return FoundWeights(_read_torch(path), str(path))
    if checkpoint.is_ours(path):
        found = checkpoint.load(path)
        return _of_ours(found.tensors, str(path), found.state.get("classes"))
    return _of_ours(checkpoint.load_tensors(path), str(path))


def _of_run(folder: Path) -> Path:
    """The best checkpoint of a run, by its own metric."""
    if not (folder / "checkpoints").is_dir():
        raise ConfigError(f"no run at {folder}: it has no checkpoints; {RUN}DIR takes a run's folder, as runs/demo")
    better = "higher"
    with suppress(FlatoutError):  # a run whose recipe cannot be read still has weights
        better = metric_named(load_config(folder / "config.yaml").config.checkpoint.metric).better
    saved = checkpoint.best_first(folder / "checkpoints", better)
    if not saved:
        raise ConfigError(f"the run at {folder} has no checkpoint yet; train it for an epoch first")
    return saved[0].path


def _of_ours(tensors: dict[str, Tensor], what: str, classes: list[str] | None = None) -> FoundWeights:
    """Of a checkpoint of flatout the weights alone: averaged ones where there are any, since those were validated."""
    averages = under("ema/average/", tensors)
    return FoundWeights(
        {**under("model/", tensors), **averages} or tensors, what, tuple(classes or ()) or None, bool(averages)
    )


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        require_regular(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"no weights at {path}; model.weights takes a file, run:DIR, timm or torchvision") from None
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error):
            raise _unreadable(path, error) from None
        raise ConfigError(
            f"{path} holds more than tensors, and reading it would run code that is in it ({_reason(error)}); if you "
            f"trust it: python -c \"import torch; found = torch.load('{path}', weights_only=False); torch.save("
            "found.state_dict() if hasattr(found, 'state_dict') else found['state_dict'], 'weights.pth')\""
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, BadFile) as error:
        raise _unreadable(path, error) from None
    return _state_in(loaded, path)


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} is not a readable torch file ({type(error).__name__}: {_reason(error)}); copy it again, or save it "
        "with torch.save(model.state_dict(), ...)"
    )


def _state_in(loaded: Any, path: Path) -> dict[str, Tensor]:
    """The weights in what a script saved: a mapping of tensors, or one that holds it."""
    within = [loaded[name] for name in _NESTED if isinstance(loaded, Mapping) and isinstance(loaded.get(name), Mapping)]
    for found in (*within, loaded if isinstance(loaded, Mapping) else {}):
        tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
        if tensors:
            return tensors
    keys = ", ".join(map(str, list(loaded)[:8])) if isinstance(loaded, Mapping) else f"a {type(loaded).__name__}"
    raise ConfigError(f"{path} holds {keys or 'nothing'}, and no weights; save a state_dict, alone or as 'state_dict'")


def _reason(error: Exception) -> str:
    """One line out of torch's page of advice: what the file would call, where it says so."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "GLOBAL" in line), lines[0])[:200]
