"""What several ranks of a run share on one machine, and what their exchange takes: read from the run's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flatout.decisions.choice import AUTO, unless_open
from flatout.decisions.older_runs import section
from flatout.diagnosis.signals import Signals
from flatout.runs import Run, RunDirectory
from flatout.runs.reading import read_link
from flatout.untrusted import number

FLOAT_BYTES = 4


@dataclass(frozen=True)
class MachineShare:
    """Of one machine, over all ranks of the run on it."""

    cores: float
    other_cores: float = 0.0
    """That other processes took while it trained."""
    ranks_here: int = 1
    threads_open: bool = False
    """The number of compute threads follows from the cores that each rank has."""
    parameter_bytes: float | None = None
    """Of all weights in 32 bits: what ranks exchange at every step."""
    state_copies: int = 2
    """Weights' sizes that the optimizer keeps beside weights and gradients."""
    link_bytes_per_second: float | None = None
    import_seconds: float = 0.0
    batch_is_global: bool = False


def share_of(signals: Signals) -> MachineShare:
    """Where only signals are known: one rank on a machine of its own."""
    return MachineShare(signals.host.cores, signals.host.other_cores)


def read_share(run: Run) -> MachineShare:
    """Every rank records the cores that are its part; the monitor sees rank 0's processes and the whole machine."""
    ranks = int(number(run.summary.get("world_size")) or 1)
    link = read_link(RunDirectory(run.directory))
    nodes = max(1, len(link.get("nodes") or ()) or int(number(section(run.config, "parallel").get("nodes")) or 1))
    here = max(1, ranks // nodes)
    cpu = section(run.environment, "cpu")
    usable = number(cpu.get("cores_usable")) or 1.0
    cores = min(usable * here, max(usable, number(cpu.get("cores_total")) or usable * here))
    groups = section(run.summary, "optimizer").get("groups") or []
    parameters = sum(number(each.get("parameters")) or 0.0 for each in groups if isinstance(each, Mapping))
    return MachineShare(
        cores,
        _other_cores(run, cores, here),
        here,
        unless_open(run.config.get("threads", AUTO)) is None,
        FLOAT_BYTES * parameters if parameters else None,
        1 if section(run.summary, "optimizer").get("name") == "sgd" else 2,
        number(link.get("bytes_per_second")),
        number(section(run.summary, "time").get("import_seconds")) or 0.0,
        section(run.config, "data").get("global_batch") is not None,
    )


def _other_cores(run: Run, cores: float, ranks_here: int) -> float:
    """By the monitor's rows that have both figures. Ranks are alike: what one takes, each of them takes."""
    pairs = [(number(row.get("cpu")), number(row.get("process_cores"))) for row in run.system]
    known = [(busy, own) for busy, own in pairs if busy is not None and own is not None]
    if not known:
        return 0.0
    busy = sum(each for each, _ in known) / len(known)
    own = sum(each for _, each in known) / len(known)
    return max(0.0, min(cores, busy * cores - own * ranks_here))
