"""Who writes down what a session does: rank 0 (`RunRecords`); the other ranks only read their own GPU for it."""

from collections.abc import Callable
from typing import Any

from flatout.decisions import Choice
from flatout.engine.parallel import Parallel
from flatout.runs import RunDirectory
from flatout.timeline.startup import StartupClock
from flatout.training.decided import NO_MONITOR
from flatout.training.monitoring import OwnGpu
from flatout.training.recording import RunRecords
from flatout.training.setup import Setup


class OtherRankRecords:
    """`RunRecords` of a rank besides rank 0: the same methods, which write nothing."""

    attempt = 0
    completed = False
    earlier_seconds = 0.0

    def __init__(self, gpu: OwnGpu) -> None:
        self._gpu = gpu

    def begin(
        self,
        optimizer: object,
        interface: object,
        clock: Callable[[], float],
        say: Callable[[str], None],
        near_pids: object = (),
    ) -> None:
        self._gpu.start(clock, say)

    def take_gpu(self) -> dict[str, Any]:
        return self._gpu.take()

    def monitored_interface(self) -> Choice[str | None]:
        return NO_MONITOR

    def data_totals(self, stages: object) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._gpu.stop()

    def _nothing(self, *_: object) -> None:
        pass

    accept_data_changes = keep_link = add_gpu = step = epoch = quarantine = _nothing
    summarise = stop_monitors = follow = _nothing


Records = RunRecords | OtherRankRecords


def open_records(setup: Setup, directory: RunDirectory, ranks: Parallel, startup: StartupClock) -> Records:
    """Reads what earlier attempts wrote; nothing is written yet."""
    if ranks.rank != 0:
        return OtherRankRecords(OwnGpu(setup.config, setup.device, ranks.rank))
    schedule = setup.schedule(ranks.world_size)
    return RunRecords(directory, setup.config, setup.dataset, setup.device, schedule, ranks.world_size, startup)
