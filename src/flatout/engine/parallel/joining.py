"""Join the ranks that were started together, and check that they are the ones the configuration asks for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import nn

from flatout.config.schema import Config
from flatout.decisions import Choice
from flatout.decisions.compute import choose_interface
from flatout.engine.devices import choose_device
from flatout.engine.learner import Learner
from flatout.engine.optimizers import optimizer_for
from flatout.engine.parallel import Parallel, RankPlace, SingleProcess
from flatout.engine.parallel.batch_norm import convert
from flatout.engine.parallel.place import find_place, interface_towards
from flatout.engine.parallel.ranks import Ranks
from flatout.engine.precision import Autocast
from flatout.errors import ConfigError, FlatoutError, Interrupted
from flatout.machine.budgets import share_machine

_SEVERAL = ("ddp", "fsdp")


def own_place(config: Config) -> RankPlace | None:
    """Where this process stands among the ranks it was started with; None where it is alone."""
    place = find_place(os.environ)
    if place is None or place.world_size == 1:
        return None
    if config.parallel.mode not in _SEVERAL:
        raise ConfigError(
            f"{place.world_size} ranks were started but parallel.mode is {config.parallel.mode}: each would train a "
            "model of its own; set parallel.mode=ddp, or start one process"
        )
    return place


def require_one_process(config: Config, command: str) -> None:
    """What is measured in one process with a loader of its own says nothing of ranks or of shared batches."""
    if config.parallel.mode != "single":
        raise ConfigError(
            f"flatout {command} measures one process but parallel.mode is {config.parallel.mode}; use --set "
            "parallel.mode=single with the batch of one rank, then train the result with your mode"
        )
    if config.data.shared != "off":
        raise ConfigError(
            f"flatout {command} measures a loader of its own but data.shared is {config.data.shared}; use --set "
            "data.shared=off, then train the result with it"
        )


def devices_per_node(config: Config) -> int:
    """How many ranks each machine has."""
    wanted = config.parallel.devices
    if wanted != "all":
        return wanted
    return torch.cuda.device_count() if choose_device(config.device).kind == "cuda" else 1


def needs_launch(config: Config, place: RankPlace | None) -> bool:
    """Whether this process is to start the ranks instead of being one."""
    if place is not None or config.parallel.mode not in _SEVERAL:
        return False
    if config.parallel.nodes > 1:
        raise ConfigError(
            f"parallel.nodes is {config.parallel.nodes} but this process was started by itself; start it on every "
            "machine with torchrun --nnodes N --nproc-per-node M --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
            "-m flatout train CONFIG"
        )
    return devices_per_node(config) > 1


def check_world(config: Config, place: RankPlace) -> None:
    """A run that silently has one machine or device less than it should costs money before anyone notices."""
    visible = torch.cuda.device_count() if choose_device(config.device).kind == "cuda" else None
    devices, nodes = devices_per_node(config), config.parallel.nodes
    if visible == 1 and config.parallel.devices == "all":  # each task may see its own only: who started them knows
        devices = place.local_world_size
    if place.local_world_size != devices:
        raise ConfigError(
            f"parallel.devices is {config.parallel.devices} ({devices} here) but {place.local_world_size} rank(s) were "
            f"started on this machine; make --nproc-per-node and parallel.devices equal"
        )
    if place.world_size != devices * nodes:
        raise ConfigError(
            f"parallel asks for {nodes} node(s) with {devices} device(s) each, {devices * nodes} ranks, but "
            f"{place.world_size} were started; make --nnodes and parallel.nodes equal"
        )
    if visible is not None and 1 < visible < place.local_world_size:  # one alone may be another one for each rank
        raise ConfigError(f"{place.local_world_size} ranks share this machine but it has {visible} GPU(s)")


def own_card(place: RankPlace) -> torch.device:
    """Of the GPUs this process sees: its own by number, or the only one (Slurm's --gpus-per-task)."""
    return torch.device("cuda", 0 if torch.cuda.device_count() == 1 else place.local_rank)


def apply_parallelism(learner: Learner, config: Config, world_size: int) -> None:
    """Prepare the learner for several devices: batch norm over all of them, weights sharded, or copies of DP."""
    if config.parallel.mode == "dp":
        replica = Autocast(learner.compute, learner.precision)
        learner.wrapped = nn.DataParallel(replica, list(range(devices_per_node(config))))
    if world_size == 1:
        return
    if config.parallel.sync_batchnorm:
        convert(learner.model)
    if config.parallel.mode == "fsdp":
        from flatout.engine.parallel.sharding import shard

        shard(learner.model, learner.device.torch.type, world_size, config.train.precision)
        learner.optimizer = optimizer_for(learner.model, config.train)  # of the shards, which are other tensors


def chosen_interface(config: Config, place: RankPlace) -> Choice[str]:
    """Of the traffic between ranks."""
    names = list(psutil.net_if_addrs())
    return choose_interface(config.parallel.interface, lambda: interface_towards(place.master_address), names)


@contextmanager
def process_group(config: Config, place: RankPlace | None) -> Iterator[Parallel]:
    """The ranks of this run, once all of them have joined; `place` is what `own_place` found."""
    if place is None:
        yield SingleProcess()
        return
    from flatout.engine.parallel.group import Group

    check_world(config, place)
    share_machine(place.local_world_size)
    interface = chosen_interface(config, place).value
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, interface)
    backend, card = "gloo", None
    if choose_device(config.device).kind == "cuda":
        own = own_card(place)
        torch.cuda.set_device(own)
        backend, card = "nccl", (own, str(torch.cuda.get_device_properties(own).uuid))
    ranks = Ranks(config, Group(place, backend, config.parallel.collective_seconds, card), interface)
    try:
        yield ranks
    except FlatoutError as error:
        if error.exit_code == Interrupted.exit_code:  # all ranks agreed to stop
            ranks.close()
        raise
    ranks.close()
