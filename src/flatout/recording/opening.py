"""Opens a recorded run: the directory, its lock, and what is known before the first step."""

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import flatout
from flatout.config.schema import CostConfig
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.errors import RunDirectoryError, UserError
from flatout.machine.budgets import usable_cores
from flatout.machine.cpu import cpu_name
from flatout.recording.collecting import Collector
from flatout.runs import RunDirectory

if TYPE_CHECKING:
    from flatout.recording.by_hand import HandLedger


def open_collector(directory: RunDirectory, name: str, instance: str | None, command: list[str]) -> Collector:
    """Locks the directory and makes it a run. Refused where it holds one already, or the instance has no price."""
    cost = CostConfig(instance=instance)
    hourly_rate_usd(cost, load_catalogue(None))
    directory.lock()
    try:
        if directory.exists:
            raise RunDirectoryError(
                f"{directory.root} holds a run already; a recording never adds to one: choose another --run DIR"
            )
        collector = Collector(directory, name, cost, command, describe_machine(command))
        collector.begin()
    except OSError as error:
        directory.unlock()
        raise RunDirectoryError(
            f"{directory.root} cannot be written to: {error.strerror}; choose another --run DIR"
        ) from None
    except BaseException:
        directory.unlock()
        raise
    return collector


def open_recording(run: str | Path, instance: str | None = None, name: str | None = None) -> "HandLedger":
    """The ledger for one's own loop: `with flatout.recording("runs/mine") as ledger:`. Refused where `run` holds a run
    already, cannot be written to, or the instance has no price."""
    if "FLATOUT_RECORD" in os.environ:
        raise UserError("flatout record already records this process; take flatout.recording(...) out, or the command")
    directory = RunDirectory(Path(run))
    collector = open_collector(directory, name or directory.root.name, instance, sys.argv[:1])
    from flatout.recording.by_hand import HandLedger  # imports torch

    return HandLedger(directory, collector)


def next_free(root: Path) -> Path:
    """`root`, or the first of root-2, root-3, ... that holds no run."""
    found, number = root, 2
    while RunDirectory(found).exists or (found.exists() and not found.is_dir()):
        found, number = root.with_name(f"{root.name}-{number}"), number + 1
    return found


def describe_machine(command: list[str]) -> dict[str, Any]:
    """env.json, before the script has said what it computes with."""
    return {
        "flatout": flatout.__version__,
        "python": platform.python_version(),
        "torch": None,
        "platform": platform.platform(),
        "host": platform.node(),
        "device": {"kind": "cpu", "name": None},
        "cpu": {"name": cpu_name(), "cores_usable": usable_cores(), "cores_total": os.cpu_count()},
        "memory_bytes": psutil.virtual_memory().total,
        "command": command,
    }
