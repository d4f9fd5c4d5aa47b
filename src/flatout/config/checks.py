"""Checks that look at more than one key: keys that nothing would use, and values that cannot go together."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flatout import plugins
from flatout.config.schema import Config, CostConfig, NodeCostConfig
from flatout.config.tasks import TASKS, spec_of

_LIBRARY_MODELS = ("timm:", "torchvision:")  # look like package:Name and are not: they are made by name
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
    "train.momentum": (lambda c: c.train.optimizer == "sgd", "train.optimizer is sgd"),
    "train.warmup_epochs": (lambda c: c.train.warmup_steps is None, "train.warmup_steps is not set"),
    "train.beta2": (lambda c: c.train.optimizer != "sgd", "train.optimizer is adamw or lamb"),
    "train.milestones": (lambda c: c.train.schedule == "step", "train.schedule is step"),
    "train.gamma": (lambda c: c.train.schedule == "step", "train.schedule is step"),
    "data.worker_kind": (lambda c: c.data.workers != 0, "data.workers is not 0"),
    "data.prefetch": (lambda c: c.data.workers != 0, "data.workers is not 0"),
    "data.batch_size": (lambda c: c.data.global_batch is None, "data.global_batch is not set"),
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
    if config.checkpoint.metric not in (metrics := config.spec.metrics) and not own:
        yield f"checkpoint.metric is {config.checkpoint.metric}, but {config.task} has {', '.join(metrics)}"
    for key, nodes in _paid_nodes(config).items():
        if nodes.instance is not None and nodes.usd_per_hour is not None:
            yield f"{key}.instance and {key}.usd_per_hour both give a price; keep one"


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


def _paid_nodes(config: Config) -> dict[str, CostConfig | NodeCostConfig]:
    return {"cost": config.cost, "cost.coordinator": config.cost.coordinator, "cost.cache": config.cost.cache}


def _has_price(config: Config) -> bool:
    return _is_priced(config.cost)


def _is_priced(nodes: CostConfig | NodeCostConfig) -> bool:
    return nodes.instance is not None or nodes.usd_per_hour is not None


def _defaults(key: str, task: str) -> tuple[Any, Any]:
    """The key's own default and the task's: a stored configuration names every key."""
    value: Any = _DEFAULTS
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value, spec_of(task).defaults.get(key, value)
