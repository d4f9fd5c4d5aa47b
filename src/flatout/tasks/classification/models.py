"""From a model's name in the configuration to a model: our own ResNets, or any classifier of timm or torchvision."""

import difflib
import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast, get_args

import torch
from torch import Tensor, nn

from flatout import plugins
from flatout.errors import ConfigError
from flatout.tasks.classification.resnet import DEPTHS, Stem, resnet
from flatout.tasks.classification.resnet_extras import Extras

PUBLISHERS = ("timm", "torchvision")
_AUXILIARY_HEADS = {"googlenet", "inception_v3"}  # in training they would return a tuple instead of logits


def build_model(
    name: str,
    classes: int,
    stem: str = "standard",
    width: float = 1.0,
    checkpointing: bool = False,
    options: Mapping[str, Any] | None = None,
    extras: Extras | None = None,
) -> nn.Module:
    """A randomly initialised classifier: `resnet18`, `timm:NAME`, `torchvision:NAME`, or a model of the user's own.

    `stem`, `width` and `extras` belong to our own models. Checkpointing of a timm model is timm's own: it keeps
    gradients exact, but a batch norm inside updates its running statistics twice per step.
    """
    _check_numbers(classes, stem, width)
    source, colon, external_name = name.partition(":")
    users = source not in PUBLISHERS and model_is_own(name)
    if not colon and not users:
        return _build_own(name, classes, cast(Stem, stem), width, checkpointing, extras)
    if source not in PUBLISHERS and not users:
        raise ConfigError(
            f"model.name is {name!r} but models come from 'timm:' or 'torchvision:'{_suggestion(source, PUBLISHERS)}; "
            f"your own are module:Name or ./file.py:Name, and no module {source!r} is installed"
        )
    if stem != "standard" or width != 1.0:
        raise ConfigError(
            f"model.stem={stem} and model.width={width:g} do not apply to {name!r}; "
            f"leave them at standard and 1, or use one of {', '.join(DEPTHS)}"
        )
    if users:
        return _build_users(name, classes, checkpointing, options or {})
    build = _build_timm if source == "timm" else _build_torchvision
    return build(external_name, classes, checkpointing)


def model_is_own(name: str) -> bool:
    """Whether the name is that of user code; one that only looks like it, as `tim:resnet18` does, is not."""
    module, colon, _ = name.partition(":")
    if name in DEPTHS or not plugins.is_user_code("models", name):
        return False
    return not colon or "." in module or importlib.util.find_spec(module) is not None


def _check_numbers(classes: int, stem: str, width: float) -> None:
    if classes < 1:
        raise ConfigError(f"a classifier needs at least 1 class, not {classes}; check the dataset's folders")
    if stem not in (known := get_args(Stem)):
        raise ConfigError(f"model.stem is {stem!r}; write {', '.join(known[:-1])} or {known[-1]}")
    if not 0 < width <= 16:
        raise ConfigError(f"model.width is {width:g}; it must be above 0 and at most 16")


def _build_own(
    name: str, classes: int, stem: Stem, width: float, checkpointing: bool, extras: Extras | None
) -> nn.Module:
    if name not in DEPTHS:
        raise ConfigError(
            f"no model is called {name!r}{_suggestion(name, DEPTHS)}; "
            f"models are {', '.join(DEPTHS)}, timm:NAME and torchvision:NAME, "
            "or your own as module:Name or ./file.py:Name"
        )
    model = resnet(name, classes, stem, width, extras=extras)
    model.checkpointing = checkpointing
    return model


def _build_timm(name: str, classes: int, checkpointing: bool) -> nn.Module:
    timm = _imported("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise ConfigError(f"timm {timm.__version__} has no model {name!r}{_suggestion(name, timm.list_models())}")
    model = cast(nn.Module, timm.create_model(name, pretrained=False, num_classes=classes))
    if checkpointing:
        try:
            cast(Any, model).set_grad_checkpointing(True)
        except (AttributeError, AssertionError) as error:  # timm's models without support assert
            raise _no_checkpointing(f"timm:{name}") from error
    return model


class ModelFactory(Protocol):
    """A class or function of the user's that makes a classifier; `options` are those of the recipe's model.options.

    The module takes normalised float images [batch, 3, height, width] and returns logits [batch, classes]. To be
    trained with train.checkpointing it needs timm's method set_grad_checkpointing(enable).
    """

    def __call__(self, *, classes: int, **options: Any) -> nn.Module: ...


def _build_users(name: str, classes: int, checkpointing: bool, options: Mapping[str, Any]) -> nn.Module:
    factory = cast(ModelFactory, plugins.load("models", name, "model.name"))
    with plugins.blamed(f"model.name is {name!r}"):
        model = factory(classes=classes, **options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model.name is {name!r}, which returned a {type(model).__name__}; it must return a module")
    if checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise _no_checkpointing(name)
        cast(Any, model).set_grad_checkpointing(True)
    return model


def published_weights(publisher: str, name: str) -> dict[str, Tensor]:
    """Weights that timm or torchvision publish for a model of theirs, or for one of ours that has the same layers."""
    source, _, theirs = name.rpartition(":")
    if source not in ("", publisher):
        raise ConfigError(f"model.weights is {publisher} but model.name is {name!r}, for which it has no weights")
    try:
        if publisher == "timm":
            model = _imported("timm", f"timm:{theirs}").create_model(theirs, pretrained=True)
        else:
            model = _imported("torchvision.models", f"torchvision:{theirs}").get_model(theirs, weights="DEFAULT")
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.weights is {publisher}, which has no weights of {theirs!r} to give: {reason}; "
            "without a network, name a file that you have copied here"
        ) from None
    return dict(model.state_dict())


def _build_torchvision(name: str, classes: int, checkpointing: bool) -> nn.Module:
    models = _imported("torchvision.models", f"torchvision:{name}")
    classifiers: list[str] = models.list_models(module=models)  # leaves detection, segmentation and video out
    if name not in classifiers:
        raise ConfigError(f"torchvision has no classifier {name!r}{_suggestion(name, classifiers)}")
    if checkpointing:
        raise _no_checkpointing(f"torchvision:{name}")
    options = {"aux_logits": False, "init_weights": True} if name in _AUXILIARY_HEADS else {}
    return cast(nn.Module, models.get_model(name, weights=None, num_classes=classes, **options))


def _imported(module: str, model_name: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # torchvision built for another torch fails with RuntimeError
        package = module.partition(".")[0]
        raise ConfigError(
            f"model {model_name!r} needs {package}, which cannot be imported ({error}); "
            f"run pip install 'flatout[models]', with the torchvision build that fits torch {torch.__version__}"
        ) from error


def _no_checkpointing(name: str) -> ConfigError:
    return ConfigError(
        f"{name!r} cannot recompute its activations; set train.checkpointing to false or use {', '.join(DEPTHS)}"
    )


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""
