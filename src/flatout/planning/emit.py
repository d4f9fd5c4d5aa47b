"""Files to start with on the chosen machine: SkyPilot, Slurm or plain shell, each with the tuned recipe beside it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from flatout.planning.options import Option

_SPARE = 1.3
"""stop.max_usd is the upper end of the estimate and a little: a run that goes wrong ends there, not next Monday."""
_SKY_CLOUDS = ("aws", "gcp", "azure", "lambda", "runpod", "oci", "ibm", "nebius", "paperspace")


def applied(option: Option) -> dict[str, Any]:
    """The keys of the recipe that this machine wants."""
    return {change.key: change.value for change in option.changes if change.applied}


def tuned(option: Option, nodes: int, max_usd: float | None) -> dict[str, Any]:
    """Those, and what the run is paid with: machine, price, and where it must stop."""
    changes = applied(option)
    changes["train.precision"] = {"amp": "auto", "tf32": "fp32", "fp32": "fp32"}[option.precision]
    changes["device"] = "cuda"
    if option.usd is None:
        return changes
    price = option.machine.hourly_usd(option.spot)
    changes |= {"cost.usd_per_hour": price, "cost.count": nodes, "cost.instance": None, "cost.spot": False}
    changes["stop.max_usd"] = round(min(max_usd or float("inf"), option.usd.high * _SPARE), 2)
    return changes


def skypilot_file(option: Option, recipe: str, nodes: int) -> str:
    cloud = option.machine.cloud if option.machine.cloud in _SKY_CLOUDS else "aws"
    lines = [
        f"# flatout plan: {_summary(option)}",
        "resources:",
        f"  cloud: {cloud}",
        f"  instance_type: {option.machine.name}",
        f"  region: {option.machine.region}",
        f"  use_spot: {'true' if option.spot else 'false'}",
        f"num_nodes: {nodes}",
        "workdir: .",
        "setup: pip install flatout",
        "run: |",
        f"  {_command(option, recipe, nodes, sky=True)}",
    ]
    return "\n".join(lines) + "\n"


def slurm_file(option: Option, recipe: str, nodes: int) -> str:
    hours = max(1, int(option.hours.high + 1))
    lines = [
        "#!/bin/bash",
        f"# flatout plan: {_summary(option)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={option.machine.gpus}",
        f"#SBATCH --cpus-per-task={int(option.machine.vcpus or 8)}",
        f"#SBATCH --time={hours}:00:00",
        "set -eu",
        _command(option, recipe, nodes, slurm=True),
    ]
    return "\n".join(lines) + "\n"


def shell_file(option: Option, recipe: str, nodes: int) -> str:
    lines = ["#!/bin/sh", f"# flatout plan: {_summary(option)}", "set -eu", _command(option, recipe, nodes)]
    return "\n".join(lines) + "\n"


def emitted_files(option: Option, recipe: str, nodes: int) -> Mapping[str, str]:
    """By the ending of the file's name."""
    return {
        "sky.yaml": skypilot_file(option, recipe, nodes),
        "slurm.sh": slurm_file(option, recipe, nodes),
        "run.sh": shell_file(option, recipe, nodes),
    }


def _summary(option: Option) -> str:
    usd = (
        "no price" if option.usd is None else f"${option.usd.value:.2f} ({option.usd.low:.2f} to {option.usd.high:.2f})"
    )
    hours = f"{option.hours.value:.2g} h ({option.hours.low:.2g} to {option.hours.high:.2g})"
    return f"{option.name}, {option.machine.gpus} x {option.card.name}: {hours}, {usd}, {option.basis}"


def _command(option: Option, recipe: str, nodes: int, sky: bool = False, slurm: bool = False) -> str:
    train = f"flatout train {shlex.quote(recipe)}"
    if nodes == 1:
        return train
    if sky:
        where = '--node_rank=$SKYPILOT_NODE_RANK --master_addr=$(echo "$SKYPILOT_NODE_IPS" | head -n1)'
    elif slurm:
        where = '--node_rank=$SLURM_NODEID --master_addr=$(scontrol show hostnames "$SLURM_NODELIST" | head -n1)'
    else:
        where = "--node_rank=$NODE_RANK --master_addr=$MASTER_ADDR"
    launch = f"torchrun --nnodes={nodes} --nproc_per_node={option.machine.gpus} {where} -m {train}"
    return f"srun bash -c {shlex.quote(launch)}" if slurm else launch
