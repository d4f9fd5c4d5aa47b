"""Where and how the model computes: device, threads, precision, optimizer, log interval, network interfaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flatout.config.sections.model import RESNETS, TRANSFORMERS
from flatout.config.sections.train import OPTIMIZERS
from flatout.config.tasks import TASKS
from flatout.decisions.choice import AUTO, Choice, as_set, is_open
from flatout.errors import ConfigError

if TYPE_CHECKING:
    from flatout.config.schema import Config, TrainConfig

_BETA1 = 0.9
_QUEUED_LOG_STEPS = 10
FUSED_GROUP = 32  # samples that fused layers compute together, there or not
_LEAST_FILLED = 0.75  # of such groups: torch's layers take 1.2 to 2 times as long as those of full ones


@dataclass(frozen=True)
class DeviceFacts:
    """What decisions need to know of the device that was found."""

    kind: str
    """cpu, cuda, mps or emulated."""
    name: str = ""
    sixteen_bit: str | None = None
    """The 16-bit arithmetic it has units for: bf16 or fp16; None for neither."""
    fuses: bool = False
    """Whether flatout's compiled layers run on it: they were built, and the processor has AVX512_BF16."""
    multiplies_tiles: bool = False
    """Whether it has AMX, whose units torch's kernels use and ours do not."""


def choose_device_kind(wanted: str, present: Mapping[str, bool]) -> Choice[str]:
    """`auto` takes the first that is present, in the mapping's order. Does not check that a named one is there."""
    if not is_open(wanted):
        return as_set("device", wanted)
    kind = next(name for name, there in present.items() if there)
    passed_over = [name for name, there in present.items() if not there]
    missing = f"torch sees no {' and no '.join(passed_over)}" if passed_over else "torch sees one"
    return Choice(kind, f"the first of {', '.join(present)} that is here: {missing}", wanted)


def choose_threads(wanted: int | str, device_kind: str, cores: int) -> Choice[int]:
    """Compute threads of torch on the host."""
    if isinstance(wanted, int):
        return as_set("threads", wanted)
    if device_kind == "cuda":
        # what torch does on the host is small there, and every thread that does some of it would start a team
        return Choice(1, "beside a GPU the host computes little", AUTO)
    return Choice(cores, f"every core that this process may use: {cores}", AUTO)


def threads_of_job_among_others(config: Config) -> int | None:
    """`threads` of one of several jobs on the same cores; None where the recipe says it, or no core computes."""
    return 1 if is_open(config.threads) and config.device == "cpu" else None


def cards_of_run(config: Config, cards: int) -> int:
    """How many a run takes of the CUDA cards that a machine has: 0 where there are none, or it computes elsewhere."""
    if config.device != "cuda" and not (cards and is_open(config.device)):
        return 0
    devices = config.parallel.devices
    return max(1, cards) if devices == "all" else int(devices)


def precision_is_open(config: Config) -> bool:
    """Whether `train.precision` is still to be decided; a run's own config.yaml always says it."""
    return is_open(config.train.precision)


def choose_precision(config: Config, device: DeviceFacts, so_far: str | None = None) -> Choice[str]:
    """fp32, bf16 or fp16. `so_far` is what a run that goes on was trained in. Refuses bf16 where it is emulated."""
    wanted, fast, mode = config.train.precision, device.sixteen_bit, config.parallel.mode
    if wanted == "bf16" and device.kind == "cuda" and fast != "bf16":
        raise ConfigError(
            f"train.precision is bf16 but {device.name} has no bf16 arithmetic, only a slow emulation of it; use "
            f"train.precision={fast or 'fp32'}"
        )
    if not is_open(wanted):
        return as_set("train.precision", str(wanted))
    if so_far is not None:
        return Choice(so_far, "the run began with it", wanted)
    if mode == "dp":
        return Choice("fp32", "autocast does not reach the threads of parallel.mode=dp", wanted)
    if mode == "fsdp" and fast == "fp16":
        return Choice("fp32", "a loss scale of fp16 does not see all shards of parallel.mode=fsdp", wanted)
    known, own_task = RESNETS + TRANSFORMERS, config.task not in TASKS
    if device.kind == "cpu" and fast is not None and own_task and is_open(config.speedups):
        return Choice("fp32", f"task is {config.task}, and its model may be one that {fast} is wrong for", wanted)
    if device.kind == "cpu" and fast is not None and not (is_open(config.speedups) and config.model.name in known):
        # its kernels are wrong for some shapes (resnet_extras.StridedConv): known to be right are those of our models
        return Choice("fp32", f"a CPU computes in {fast} only for speedups of {', '.join(known)}", wanted)
    if fast is None:
        return Choice("fp32", f"{device.kind} has no faster 16-bit arithmetic that is chosen unasked", wanted)
    return Choice(fast, f"{device.name} has units for {fast}", wanted)


def choose_kernels(config: Config, device: DeviceFacts) -> Choice[str]:
    """torch or fused. Where fused layers cannot be had, those of torch are taken, and the reason says so."""
    wanted, model, train, parallel = config.train.kernels, config.model, config.train, config.parallel
    if wanted == "torch":
        return as_set("train.kernels", "torch")
    if is_open(wanted) and not is_open(config.speedups):
        return Choice("torch", "fused layers are for speedups", wanted)
    samples = _samples_at_once(config)
    obstacles = {
        f"device is {device.kind}, and they are for CPUs": device.kind != "cpu",
        "they were not compiled, or this processor has no AVX512_BF16": not device.fuses,
        "torch's own use this processor's AMX, and they do not": device.multiplies_tiles and is_open(wanted),
        f"model.name is {model.name}, and they are for {', '.join(RESNETS)}": model.name not in RESNETS,
        f"task is {config.task}, and its model may be another": is_open(wanted) and config.task not in TASKS,
        "model.blur_pool, squeeze_excite or stochastic_depth is on": bool(
            model.blur_pool or model.squeeze_excite or model.stochastic_depth
        ),
        "train.compile is on": train.compile,
        f"parallel.mode is {parallel.mode}": parallel.mode in ("dp", "fsdp"),
        "parallel.sync_batchnorm is on": parallel.sync_batchnorm,
        "they compute in bf16, which train.precision is not": choose_precision(config, device).value != "bf16",
        f"parts of {samples} samples would fill too little of groups of {FUSED_GROUP}": is_open(wanted)
        and samples / (math.ceil(samples / FUSED_GROUP) * FUSED_GROUP) < _LEAST_FILLED,
    }
    if found := next((reason for reason, there in obstacles.items() if there), None):
        return Choice("torch", f"no fused layers: {found}", wanted)
    return Choice("fused", f"compiled layers for {device.name}, in bf16", wanted)


def _samples_at_once(config: Config) -> int:
    data, parallel = config.data, config.parallel
    if data.global_batch is None:
        return math.ceil(data.batch_size / config.train.accumulate)
    ranks = parallel.nodes * (parallel.devices if isinstance(parallel.devices, int) else 1)
    return math.ceil(data.global_batch / ranks / config.train.accumulate)


def fast_precisions(device: DeviceFacts) -> set[str]:
    """16-bit arithmetic worth measuring: what the device only emulates is left out."""
    if device.kind != "cuda":
        return {"bf16"}
    return {"bf16", "fp16"} if device.sixteen_bit == "bf16" else {"fp16"}


def with_precision_of(wanted: Config, trained: Config) -> Config:
    """`wanted`, with the precision that its run was trained in where it leaves that open."""
    if not precision_is_open(wanted):
        return wanted
    train = wanted.train.model_copy(update={"precision": trained.train.precision})
    return wanted.model_copy(update={"train": train})


def queues_work(device_kind: str) -> bool:
    """Whether the host only queues work there, so that reading a value waits for all of it."""
    return device_kind in ("cuda", "mps")


def choose_log_interval(wanted: int | str, waits: bool) -> Choice[int]:
    """Steps between two readings of the loss; `waits`: the device queues work."""
    if isinstance(wanted, int):
        return as_set("train.log_every", wanted)
    if waits:
        return Choice(_QUEUED_LOG_STEPS, "reading the loss waits for all that is queued on the device", AUTO)
    return Choice(1, "reading the loss waits for nothing: the device queues no work", AUTO)


def choose_optimizer(train: TrainConfig, can_fuse: bool) -> Choice[dict[str, Any]]:
    """The optimizer's name and the arguments it is made with; weight decay is each parameter group's own.

    `can_fuse`: all parameters are on CUDA, where one kernel updates many of them.
    """
    given: dict[str, Any]
    if train.optimizer not in OPTIMIZERS:
        given = {"name": train.optimizer, "lr": train.lr, **train.optimizer_options}
        return Choice(given, f"train.optimizer is {train.optimizer}, which is the user's own")
    fused = True if can_fuse else None
    given = {"lr": train.lr}
    if train.optimizer == "sgd":
        given |= {"momentum": train.momentum, "nesterov": train.momentum > 0, "fused": fused}
    else:
        given |= {"betas": (_BETA1, train.beta2), "fused": fused}
    if train.optimizer == "muon":
        given |= {"momentum": train.momentum}
    kernel = "one fused kernel on CUDA" if can_fuse else "no fused kernel: not all parameters are on CUDA"
    return Choice({"name": train.optimizer, **given}, f"train.optimizer is {train.optimizer}; {kernel}")


def choose_interface(wanted: str, towards_main: Callable[[], str], known: Sequence[str]) -> Choice[str]:
    """Of the traffic between ranks; one that this machine does not have is refused."""
    if is_open(wanted):
        return Choice(towards_main(), "it leads to the first machine", wanted)
    if wanted not in known:
        raise ConfigError(f"parallel.interface is {wanted!r}; this machine has {', '.join(sorted(known))}")
    return as_set("parallel.interface", wanted)


def check_monitored_interface(wanted: str, known: Sequence[str]) -> None:
    if not is_open(wanted) and wanted not in known:
        raise ConfigError(
            f"monitor.interface is {wanted!r} but this machine has {', '.join(known)}; use one of them or auto"
        )


def choose_monitored_interface(
    wanted: str, rank_interface: str | None, towards_store: Callable[[], str | None]
) -> Choice[str | None]:
    """The one whose traffic counts as that of the training."""
    if not is_open(wanted):
        return Choice(wanted, "monitor.interface says so", wanted)
    if rank_interface is not None:
        return Choice(rank_interface, "it leads to the other ranks", wanted)
    return Choice(towards_store(), "it leads to the data's store, or is that of the default route", wanted)
