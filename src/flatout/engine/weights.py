"""Start a model from weights that were trained elsewhere: other names, another number of classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from flatout.engine.parameters import bare
from flatout.engine.sharded_tensors import shard_like
from flatout.engine.weight_files import FoundWeights, read_weights
from flatout.errors import ConfigError
from flatout.tasks.classification.models import PUBLISHERS, published_weights

_PREFIXES = ("module.", "_orig_mod.", "model.", "_model.")
_COUNTER = "num_batches_tracked"  # older files have none


@dataclass(frozen=True)
class WeightsReport:
    """What was taken over; `notes` is for people."""

    loaded: tuple[str, ...]
    new_head: tuple[str, ...]  # tensors that start anew
    unused: tuple[str, ...]  # of the file
    notes: tuple[str, ...]


def load_weights(model: nn.Module, source: str, classes: Sequence[str] = (), model_name: str = "") -> WeightsReport:
    """Into the model, whole or sharded; nothing changes where they do not fit. `source` is that of model.weights, and
    `classes` are the names that the model's outputs stand for, in their order, where they stand for any."""
    found = _published(source, model_name) if source in PUBLISHERS else read_weights(source)
    own = bare(model).state_dict()
    given = renamed(found.tensors, own)
    head, why = _new_head(bare(model), own, given, found, classes)
    _require_fit(own, given, head, found.what)
    loaded = [name for name in own if name in given and name not in head]
    _require_finite(given, loaded, found.what)
    whole = {name: given.get(name, own[name]) if name not in head else own[name] for name in own}
    bare(model).load_state_dict(
        {name: shard_like(own[name], value) if name in loaded else value for name, value in whole.items()}
    )
    unused = sorted(set(given) - set(own))
    return WeightsReport(tuple(loaded), tuple(head), tuple(unused), tuple(_notes(found, head, why, unused)))


def renamed(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wrappers put before them, where the model does not have it itself."""
    result = {}
    for name, value in tensors.items():
        short = name
        while short not in own and (prefix := next((each for each in _PREFIXES if short.startswith(each)), None)):
            short = short.removeprefix(prefix)
        result[short if short in own else name] = value
    return result


def _published(source: str, model_name: str) -> FoundWeights:
    return FoundWeights(published_weights(source, model_name), f"{source}'s {model_name.rpartition(':')[2]}")


def _new_head(
    model: nn.Module,
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    found: FoundWeights,
    classes: Sequence[str],
) -> tuple[list[str], str]:
    """Tensors of the last layer, where its outputs would not mean the same, and why."""
    name = _head_name(model, len(classes)) if classes else None
    if name is None:
        return [], ""
    head = [each for each in own if each.startswith(f"{name}.")]
    others = [each for each in head if each not in given or given[each].shape[1:] != own[each].shape[1:]]
    if others:
        return [], ""
    outputs = len(given[head[0]])
    if outputs != len(classes):
        return head, f"{found.what} has {outputs} classes and the data {len(classes)}"
    if found.classes is not None and found.classes != tuple(classes):
        return head, f"{found.what} was trained on other classes, or in another order"
    return [], ""


def _head_name(model: nn.Module, classes: int) -> str | None:
    """The last layer with an output for each class."""
    found = None
    for name, module in model.named_modules():
        if getattr(module, "out_features", getattr(module, "out_channels", None)) == classes and name:
            found = name
    return found


def _require_fit(own: Mapping[str, Tensor], given: Mapping[str, Tensor], head: Sequence[str], what: str) -> None:
    needed = [name for name in own if name not in head and not name.endswith(_COUNTER)]
    wrong = [name for name in needed if name not in given or given[name].shape != own[name].shape]
    if not wrong:
        return
    first, fitting = wrong[0], len(needed) - len(wrong)
    strangers = sorted(name for name in given if name not in own)
    has = f"has {list(given[first].shape)}" if first in given else "does not have it"
    other = f", but has {strangers[0]!r}" if strangers and first not in given else ""
    hint = "; model.stem and model.width must be those the weights were trained with" if first == "conv1.weight" else ""
    raise ConfigError(
        f"{what} fits the model in {fitting} of {len(needed)} tensors: {first!r} is {list(own[first].shape)} in the "
        f"model and the file {has}{other}; use the model.* that the weights were trained with{hint}"
    )


def _require_finite(given: Mapping[str, Tensor], names: Sequence[str], what: str) -> None:
    """Of a training that diverged nothing can be learnt, and the first loss would be blamed on this one."""
    for name in names:
        if given[name].is_floating_point() and not bool(given[name].isfinite().all()):
            raise ConfigError(f"{what} has values in {name!r} that are not finite: that training diverged; use others")


def _notes(found: FoundWeights, head: Sequence[str], why: str, unused: Sequence[str]) -> Iterator[str]:
    averaged = ", its averaged ones" if found.averaged else ""
    yield f"weights from {found.what}{averaged}; optimizer and schedule start anew"
    if head:
        yield f"the last layer ({head[0].rpartition('.')[0]}) starts anew: {why}"
    if unused:
        yield f"{len(unused)} tensors of {found.what} are not used, first {unused[0]!r}"
