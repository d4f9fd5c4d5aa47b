"""What a run ran on: for env.json."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import torch

import flatout
from flatout.config.schema import Config
from flatout.data.pixels.decode import decoder_name
from flatout.engine.cuda_defaults import describe_arithmetic
from flatout.engine.devices import Device
from flatout.machine.budgets import usable_cores
from flatout.machine.cpu import cpu_name


def describe_environment(device: Device, config: Config) -> dict[str, Any]:
    """Versions, device, cores and memory; no environment variables, which may hold secrets."""
    return {
        "flatout": flatout.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "host": platform.node(),
        "device": {"kind": device.kind, "name": device.name},
        "arithmetic": describe_arithmetic(config, device),
        "decoder": decoder_name(),
        "cuda": torch.version.cuda,
        "cpu": {"name": cpu_name(), "cores_usable": usable_cores(), "cores_total": os.cpu_count()},
        "memory_bytes": psutil.virtual_memory().total,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the folder the command was given in, or None outside a checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
