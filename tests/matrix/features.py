"""Features of flatout as changes to one tiny run, and what each promises when it meets another."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

GLOBAL_BATCH, BATCH_TOKENS, EPOCHS = 16, 160, 2
SUBSET = 3  # of the 4 classes


@dataclass(frozen=True)
class Case:
    """One way to train the tiny dataset."""

    task: str = "images"
    container: str = "folder"  # folder | tar | zip | pack
    remote: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys of the recipe
    ranks: int = 1
    warm: bool = False
    killed: bool = False
    suite: bool = False
    tune: bool = False

    def set(self, **keys: Any) -> "Case":
        """Keys with `__` for the dot."""
        return replace(self, settings={**self.settings, **{key.replace("__", "."): keys[key] for key in keys}})


@dataclass(frozen=True)
class Feature:
    name: str
    apply: Callable[[Case], Case]
    keeps: str
    """What is the same as without it: `bits` (weights, losses), `losses` of every step (validation may differ), `close`
    (losses to float tolerance), `samples` alone."""
    words: str
    """How a refusal may name it."""
    slot: str = ""
    """Two features of one slot are two values of one key: nobody can ask for both."""
    in_effect: Callable[[Mapping[str, Any]], bool] = lambda summary: True
    """Whether a run's summary shows that it was really there: a feature that silently stays off is wrong too."""
    own_optimizer: bool = False
    """Whether the run has another optimizer than it has without it."""


def _ranks(mode: str, **more: Any) -> Callable[[Case], Case]:
    def apply(case: Case) -> Case:
        mine = {"parallel.mode": mode, "parallel.devices": 2}
        mine |= {} if mode == "dp" else {"parallel.preflight": False}
        mine |= {key.replace("__", "."): value for key, value in more.items()}
        return replace(case, ranks=2, settings={**case.settings, **mine})

    return apply


def _two(summary: Mapping[str, Any]) -> bool:
    return bool(summary["world_size"] == 2)


def _cached(summary: Mapping[str, Any]) -> bool:
    return bool(summary["data"]["cache_hits"] > 0)


def _requests(summary: Mapping[str, Any]) -> bool:
    return bool(summary["data"]["store_requests"] > 0)


_SYNC = {"parallel__sync_batchnorm": True}  # without it batch norm sees other samples, and losses differ
_EMULATED = {"base_seconds": 0.001, "seconds_per_sample": 0.0001}

FEATURES = (
    Feature("ddp", _ranks("ddp", **_SYNC), "close", r"parallel\.mode|ddp", "mode", _two),
    Feature("fsdp", _ranks("fsdp"), "samples", r"parallel\.mode|fsdp", "mode", _two),
    Feature("dp", _ranks("dp"), "samples", r"\bdp\b", "mode"),
    Feature(
        "local steps", _ranks("ddp", parallel__local_steps=2, **_SYNC), "samples", "local_steps|parallel", "mode", _two
    ),
    Feature(
        "powersgd", _ranks("ddp", parallel__compress="powersgd", parallel__powersgd_start_step=3, **_SYNC), "samples",
        "powersgd|compress|parallel", "mode", _two,
    ),
    Feature("shared", lambda c: c.set(data__shared="auto"), "bits", r"data\.shared", "",
            lambda s: (s.get("shared") or {}).get("hits", 0) > 0),
    Feature("stage", lambda c: replace(c, remote=True).set(data__stage="auto"), "bits", r"data\.stage|object store", "stage", _requests),
    Feature("disk cache", lambda c: c.set(data__cache="disk"), "bits", r"data\.cache", "cache", _cached),
    Feature("memory cache", lambda c: c.set(data__cache="memory"), "bits", r"data\.cache", "cache", _cached),
    Feature("pack", lambda c: replace(c, container="pack"), "bits", "pack", "container"),
    Feature("tar", lambda c: replace(c, container="tar"), "bits", r"tar\b", "container"),
    Feature("zip", lambda c: replace(c, container="zip"), "bits", r"zip\b", "container"),
    Feature("balanced classes", lambda c: c.set(data__balance="classes", data__class_weights="balanced"), "samples", r"data\.balance|class_weights"),
    Feature("s3", lambda c: replace(c, remote=True).set(data__stage="off"), "bits", r"s3|data\.stage", "stage", _requests),
    Feature("processes", lambda c: c.set(data__workers=2, data__worker_kind="process"), "bits", "worker_kind"),
    Feature("accumulate", lambda c: c.set(train__accumulate=2), "samples", "accumulate"),
    Feature("bf16", lambda c: c.set(train__precision="bf16"), "samples", "bf16|precision"),
    Feature("fused layers", lambda c: c.set(train__precision="bf16", train__kernels="fused"), "samples", "kernels|fused|bf16|precision"),
    Feature("ema", lambda c: c.set(train__ema=0.9), "losses", "ema"),
    Feature("mixup+cutmix", lambda c: c.set(views__small__mixup=0.4, views__small__cutmix=0.6), "samples", "views"),
    Feature("checkpointing", lambda c: c.set(train__checkpointing=True), "bits", "checkpointing"),
    Feature("progressive resizing", lambda c: c.set(views__small__sizes={0: 12, 1: 16}), "samples", "views"),
    Feature("alternate flip", lambda c: c.set(views__small__flip=0.5, views__small__alternate_flip=True), "samples", "views"),
    Feature("blur, squeeze, depth", lambda c: c.set(model__blur_pool=True, model__squeeze_excite=True, model__stochastic_depth=0.5), "samples",
            r"model\.(blur_pool|squeeze_excite|stochastic_depth)|\.se\."),
    Feature("muon", lambda c: c.set(train__optimizer="muon"), "samples", r"train\.optimizer|muon", "",
            lambda s: s["optimizer"]["name"] == "muon", own_optimizer=True),
    Feature("swa", lambda c: c.set(train__swa=0.5), "losses", r"train\.swa"),
    Feature("selective", lambda c: c.set(train__selective=[0.5, 1.0]), "samples", r"train\.selective"),
    Feature("freeze by epoch", lambda c: c.set(model__freeze_from={1: ["*.bias"]}), "samples", r"model\.freeze_from"),
    Feature("patch stem", lambda c: c.set(model__stem="patch"), "samples", r"model\.stem"),
    Feature("lookahead", lambda c: c.set(train__lookahead=2), "samples", r"train\.lookahead"),
    Feature("fast", lambda c: c.set(speedups="auto"), "samples", "speedups"),
    Feature("own transform", lambda c: c.set(views__small__transform=f"{Path(__file__).parent}/negative.py:sometimes"), "samples",
            r"transform"),
    Feature("own loss", lambda c: c.set(train__loss=f"{Path(__file__).parent}/own_loss.py:squared"), "samples", r"train\.loss|own_loss"),
    Feature("freeze", lambda c: c.set(model__freeze=["*.bias"]), "samples", r"model\.freeze"),
    Feature("groups", lambda c: c.set(train__layer_decay=0.9), "samples", r"train\.(groups|layer_decay)", "",
            lambda s: any("lr_scale" in group for group in s["optimizer"]["groups"])),
    Feature("class subset", lambda c: c.set(data__classes=SUBSET), "samples", r"data\.classes"),
    Feature("translation", lambda c: replace(c, task="text"), "samples", r"translation|classification|train\.aa|only when model\.name is"),
    Feature("emulated", lambda c: c.set(device="emulated", emulated=_EMULATED), "samples", "emulated", "",
            lambda s: s["device"]["emulated"]),
    Feature("warm start", lambda c: replace(c, warm=True), "samples", "warm|weights"),
    Feature("resume after kill -9", lambda c: replace(c, killed=True), "bits", "resume", "", lambda s: s["attempts"] > 1),
    Feature("suite", lambda c: replace(c, suite=True), "bits", "suite"),
    Feature("tune", lambda c: replace(c, tune=True), "samples", "tune|device is emulated"),
)  # fmt: skip

BY_NAME = {feature.name: feature for feature in FEATURES}
PAIRS = [(one.name, two.name) for at, one in enumerate(FEATURES) for two in FEATURES[at + 1 :]]


def impossible(one: Feature, two: Feature) -> str | None:
    """Why nobody can ask for both, where that is so."""
    if one.slot and one.slot == two.slot:
        return "two values of one key"
    if {one.name, two.name} == {"warm start", "suite"}:
        return "a suite has no --warm-start"
    return None


def comparable(feature: Feature, other: Feature) -> bool:
    """Whether losses with both may be held against those with `other` alone."""
    if feature.keeps == "samples" or other.name == "tune":  # which settings a machine likes best varies
        return False
    return not (feature.name == "ddp" and other.name == "accumulate")  # batch norm of other parts: slices, then parts


def names_both(line: str, *features: Feature) -> bool:
    return all(re.search(feature.words, line, re.IGNORECASE) for feature in features)
