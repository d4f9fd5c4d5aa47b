"""Checks that look at more than one key: keys that nothing would use, and values that cannot go together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flatout import plugins
from flatout.config.dotted import nested
from flatout.config.schema import Config, CostConfig, NodeCostConfig
from flatout.config.sections.model import RESNETS
from flatout.config.sections.train import LOSSES, OPTIMIZERS, SCHEDULES
from flatout.config.tasks import DEFAULT_TASK, TASKS, spec_of

_LIBRARY_MODELS = ("timm:", "torchvision:")  # look like package:Name and are not: they are made by name
_WITH_BETA2 = ("adamw", "lamb", "muon")
_LEAST_COMPILED_BUCKET = 2**20  # the first bucket of DDP, which must be the smallest
_DEFAULTS = Config().model_dump(mode="json", by_alias=True)


def _only_for(task: str) -> tuple[Callable[[Config], bool], str]:
    """Used by that task, and by tasks of the user's own, of which nobody here knows what they read."""
    return lambda config: config.task == task or config.task not in TASKS, f"task is {task}"


# key (or section) -> (is it used?, when it would be)
_USED: dict[str, tuple[Callable[[Config], bool], str]] = {
    "emulated": (lambda c: c.device == "emulated", "device is emulated"),
    "model.options": (
        lambda c: plugins.is_user_code("models", c.model.name) and not c.model.name.startswith(_LIBRARY_MODELS),
        "model.name is user code",
    ),
    "train.optimizer_options": (lambda c: c.train.optimizer not in OPTIMIZERS, "train.optimizer is user code"),
    "train.schedule_options": (lambda c: c.train.schedule not in SCHEDULES, "train.schedule is user code"),
    "train.loss_options": (lambda c: c.train.loss not in LOSSES, "train.loss is user code"),
    "train.label_smoothing": (lambda c: c.train.loss in LOSSES, "train.loss is cross-entropy"),
    **{
        f"model.{key}": (lambda c: c.model.name in RESNETS, f"model.name is {', '.join(RESNETS)}")
        for key in ("zero_gamma", "blur_pool", "squeeze_excite", "stochastic_depth")
    },
    "task_options": (lambda c: c.task not in TASKS, "task is user code"),
    "train.momentum": (lambda c: c.train.optimizer in ("sgd", "muon"), "train.optimizer is sgd or muon"),
    "train.lookahead_share": (lambda c: c.train.lookahead is not None, "train.lookahead is set"),
    "train.warmup_epochs": (lambda c: c.train.warmup_steps is None, "train.warmup_steps is not set"),
    "train.beta2": (lambda c: c.train.optimizer in _WITH_BETA2, "train.optimizer is adamw, lamb or muon"),
    "train.milestones": (lambda c: c.train.schedule == "step", "train.schedule is step"),
    "train.gamma": (lambda c: c.train.schedule == "step", "train.schedule is step"),
    "data.worker_kind": (lambda c: c.data.workers != 0, "data.workers is not 0"),
    "data.prefetch": (lambda c: c.data.workers != 0, "data.workers is not 0"),
    "data.batch_size": (lambda c: c.data.global_batch is None, "data.global_batch is not set"),
    "data.holdout": (lambda c: c.data.split is None, "data.split is not set"),
    "data.unlisted": (lambda c: isinstance(c.data.classes, list | str), "data.classes is a list or a file"),
    **{
        f"parallel.{key}": (lambda c: c.parallel.mode in ("ddp", "fsdp"), "parallel.mode is ddp or fsdp")
        for key in (
            "nodes",
            "verify_every",
            "silence_seconds",
            "collective_seconds",
            "max_restarts",
            "interface",
            "preflight",
            "min_link",
            "warn_exposed_share",
        )
    },
    **{
        f"parallel.{key}": (lambda c: c.parallel.mode == "ddp", "parallel.mode is ddp")
        for key in (
            "sync_batchnorm",
            "bucket_bytes",
            "compress",
            "local_steps",
        )
    },
    "parallel.devices": (lambda c: c.parallel.mode != "single", "parallel.mode is not single"),
    "parallel.scale_lr": (
        lambda c: c.parallel.mode in ("ddp", "fsdp") and c.data.global_batch is None,
        "parallel.mode is ddp or fsdp and data.global_batch is not set",
    ),
    "parallel.powersgd_rank": (lambda c: c.parallel.compress == "powersgd", "parallel.compress is powersgd"),
    "parallel.powersgd_start_step": (lambda c: c.parallel.compress == "powersgd", "parallel.compress is powersgd"),
    "parallel.local_from_epoch": (lambda c: c.parallel.local_steps is not None, "parallel.local_steps is set"),
    "parallel.outer_lr": (lambda c: c.parallel.local_steps is not None, "parallel.local_steps is set"),
    "parallel.outer_momentum": (lambda c: c.parallel.local_steps is not None, "parallel.local_steps is set"),
    "data.shared_bytes": (lambda c: c.data.shared == "auto", "data.shared is auto"),
    "data.shared_token": (lambda c: c.data.shared.startswith("grpc://"), "data.shared is grpc://HOST:PORT"),
    "data.shared_tls_ca": (lambda c: c.data.shared != "off", "data.shared is on"),
    "data.shared_start": (lambda c: c.data.shared != "off", "data.shared is on"),
    "cost.count": (lambda c: _has_price(c), "cost.instance or cost.usd_per_hour is set"),
    "cost.spot": (lambda c: c.cost.instance is not None, "cost.instance is set"),
    "cost.disk": (lambda c: _has_price(c), "cost.instance or cost.usd_per_hour is set"),
    "cost.disk.mb_per_second": (lambda c: c.cost.disk.bytes > 0, "cost.disk.bytes is set"),
    "cost.coordinator.count": (lambda c: _is_priced(c.cost.coordinator), "cost.coordinator has a price"),
    "cost.cache.instance": (lambda c: c.cost.cache.kind == "nodes", "cost.cache.kind is nodes"),
    "cost.cache.usd_per_hour": (lambda c: c.cost.cache.kind == "nodes", "cost.cache.kind is nodes"),
    "cost.cache.count": (lambda c: _is_priced(c.cost.cache), "cost.cache has the price of a machine"),
    "cost.store": (lambda c: "://" in c.data.path, "data.path is in an object store"),
    "monitor.interface": (lambda c: c.monitor.interval_seconds is not None, "monitor.interval_seconds is not null"),
    "stop.after_epochs": (
        lambda c: c.stop.after_epochs is not None and c.stop.after_epochs < c.train.epochs,
        "it is below train.epochs",
    ),
    "stop.max_usd": (lambda c: _has_price(c), "cost.instance or cost.usd_per_hour is set"),
}
_RULES = [*_USED.items(), *((key, _only_for(spec.name)) for spec in TASKS.values() for key in spec.keys)]


def find_unused(config: Config, set_keys: Mapping[str, Any]) -> Iterator[str]:
    """One message for each key that the user set away from its default and that this configuration never reads."""
    for key, value in set_keys.items():
        for prefix, (used, when) in _RULES:
            inside = key == prefix or key.startswith(prefix + ".")
            if inside and value not in _defaults(key, config.task) and not used(config):
                yield f"{key} is {value!r} but nothing uses it: it takes effect only when {when}; remove it or set that"


def find_wrong_combinations(config: Config) -> Iterator[str]:
    """One message for each set of values that cannot work together."""
    size = config.data.global_batch or config.data.batch_size
    if config.train.accumulate > size:
        key = "batch_size" if config.data.global_batch is None else "global_batch"
        yield (
            f"train.accumulate is {config.train.accumulate} but data.{key} is {size}: "
            f"a part needs at least one sample; set train.accumulate to at most {size}"
        )
    yield from _wrong_parallel(config)
    if config.data.worker_kind == "process" and config.data.cache in ("memory", "disk"):
        yield (
            f"data.cache is {config.data.cache} but data.worker_kind is process, and worker processes keep no cache; "
            "use data.worker_kind=thread, or data.cache=off"
        )
    for key in ("view", "eval_view"):
        view = config.views.get(name := getattr(config.data, key))
        if view is not None and view.decode == "scaled" and config.data.cache in ("memory", "disk"):
            yield (
                f"data.cache is {config.data.cache} but views.{name}.decode is scaled ({key}): the cache keeps whole "
                "images and each scaled crop is decoded to a size of its own; use data.cache=auto, or decode: exact"
            )
    if config.train.precision == "fp16" and config.device in ("cpu", "emulated"):
        yield f"train.precision is fp16 but device is {config.device}, which has no fp16 training; use bf16 or fp32"
    own = config.task not in TASKS  # a task of the user's own
    if config.device == "emulated" and (own or config.spec.not_emulated is not None):
        why = "its steps are its own" if own else config.spec.not_emulated
        yield f"device is emulated but task is {config.task}: {why}; use cpu or cuda"
    own_metrics = own or config.validate_.metrics  # their names are known when they are loaded
    if config.checkpoint.metric not in (metrics := config.spec.metrics) and not own_metrics:
        yield f"checkpoint.metric is {config.checkpoint.metric}, but {config.task} has {', '.join(metrics)}"
    yield from _wrong_own_code(config)
    for key, nodes in _paid_nodes(config).items():
        if nodes.instance is not None and nodes.usd_per_hour is not None:
            yield f"{key}.instance and {key}.usd_per_hour both give a price; keep one"


def _wrong_own_code(config: Config) -> Iterator[str]:
    name, weights = config.model.name, config.model.weights
    for view_name, view in config.views.items():
        if view.transform_options and view.transform is None:
            yield f"views.{view_name}.transform_options is set but views.{view_name}.transform is not; set it too"
    if config.parallel.mode == "fsdp" and config.train.optimizer not in OPTIMIZERS:
        yield (
            f"parallel.mode is fsdp but train.optimizer is {config.train.optimizer}: only {', '.join(OPTIMIZERS)} are "
            "known to work on parts of weights; use one of them, or parallel.mode=ddp"
        )
    if weights is not None and config.device == "emulated":
        yield f"model.weights is {weights} but device is emulated, which computes nothing with weights; leave one out"
    if weights in ("timm", "torchvision") and (
        config.task != DEFAULT_TASK or not (name.startswith(f"{weights}:") or ":" not in name)
    ):
        yield (
            f"model.weights is {weights} but model.name is {name}, for which it has none; name a file or run:DIR, or "
            f"use {weights}:NAME or resnet18, resnet34, resnet50"
        )


def _wrong_parallel(config: Config) -> Iterator[str]:
    parallel = config.parallel
    if parallel.local_steps is not None and parallel.compress != "none":
        yield "parallel.local_steps exchanges weights and parallel.compress shrinks gradients; keep one of them"
    if parallel.mode in ("ddp", "fsdp") and _has_price(config) and config.cost.count != parallel.nodes:
        yield f"cost.count is {config.cost.count} but parallel.nodes is {parallel.nodes}: each machine is paid for"
    if parallel.mode in ("ddp", "fsdp") and config.data.shared_start == "window":
        yield (
            f"data.shared_start is window but parallel.mode is {parallel.mode}: each rank would begin where other jobs "
            "are just then, and no two at the same batch; set data.shared_start=beginning"
        )
    if parallel.mode == "ddp" and config.train.compile and parallel.bucket_bytes < _LEAST_COMPILED_BUCKET:
        yield (
            f"parallel.bucket_bytes is {parallel.bucket_bytes} but train.compile is true, which needs at least "
            f"{_LEAST_COMPILED_BUCKET}: torch cuts its graphs where a bucket is full"
        )
    if parallel.mode == "dp" and config.device in ("cpu", "emulated", "mps"):
        yield f"parallel.mode is dp but device is {config.device}; dp is for several GPUs, ddp works everywhere"
    if parallel.mode == "fsdp" and (config.train.ema is not None or config.device == "emulated"):
        yield "parallel.mode fsdp works neither with train.ema nor with device: emulated; use ddp"
    yield from _wrong_whole_weights(config)
    yield from _wrong_selection(config)


def _wrong_whole_weights(config: Config) -> Iterator[str]:
    """What looks at whole weights, between ranks that have parts of them, or for a while other ones."""
    parallel, train = config.parallel, config.train
    if parallel.mode == "fsdp" and train.optimizer == "muon":
        yield "parallel.mode is fsdp but train.optimizer is muon, which needs whole matrices; use ddp, or adamw"
    if train.ema is not None and train.swa is not None:
        yield "train.ema and train.swa are both averages to validate; keep one of them"
    if parallel.mode == "fsdp" and train.swa is not None:
        yield "parallel.mode is fsdp but train.swa is set, which keeps whole weights; use ddp, or leave it out"
    if parallel.mode in ("ddp", "fsdp") and config.model.freeze_from:
        yield (
            f"parallel.mode is {parallel.mode} but model.freeze_from is set: ranks exchange gradients of all that was "
            "trained at first; use model.freeze, or one rank"
        )
    if parallel.mode == "fsdp" and train.lookahead is not None:
        yield "parallel.mode is fsdp but train.lookahead is set, which keeps whole weights; use ddp, or leave it out"
    if parallel.local_steps is not None and train.lookahead is not None:
        yield (
            "parallel.local_steps and train.lookahead both move weights back every few steps; keep one of them "
            "(outer steps are a lookahead already)"
        )


def _wrong_selection(config: Config) -> Iterator[str]:
    selective, view = config.train.selective, config.views.get(config.data.view)
    if selective is None:
        return
    if selective[0] >= selective[1]:
        yield f"train.selective is {list(selective)}; the first share must be below the second, as in [0.5, 0.9]"
    if config.device == "emulated":
        yield "train.selective is set but device is emulated, for which no sample is harder than another; leave one out"
    if config.parallel.mode == "fsdp":
        yield "parallel.mode is fsdp but train.selective is set, which asks whole models; use ddp, or leave it out"
    if config.task not in TASKS:
        yield f"train.selective is set but task is {config.task}, of which nobody here knows what is hard; leave it out"
    if view is not None and (view.mixup or view.cutmix):
        yield (
            f"train.selective takes one of two neighbours, which views.{config.data.view}.mixup or cutmix mix with "
            "each other; keep one of them"
        )


def _paid_nodes(config: Config) -> dict[str, CostConfig | NodeCostConfig]:
    return {"cost": config.cost, "cost.coordinator": config.cost.coordinator, "cost.cache": config.cost.cache}


def _has_price(config: Config) -> bool:
    return _is_priced(config.cost)


def _is_priced(nodes: CostConfig | NodeCostConfig) -> bool:
    return nodes.instance is not None or nodes.usd_per_hour is not None


def _defaults(key: str, task: str) -> tuple[Any, Any]:
    """The key's own default and the task's: a stored configuration names every key."""
    value = nested(_DEFAULTS, key)
    return value, spec_of(task).defaults.get(key, value)
