"""Start the ranks of one machine through torch's elastic launcher, and end with what they end with."""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.app.stopping import stop_signals
from flatout.config.loading import dump_config
from flatout.config.schema import Config
from flatout.errors import EndedBySomeRank, FlatoutError, RunFailed
from flatout.runs import RunDirectory
from flatout.runs.directory import mark_failed

_SAVE_SECONDS = 60  # from SIGTERM to the end of the checkpoint; then a rank is killed


def launch_ranks(config: Config, ranks: int, directory: RunDirectory, options: Mapping[str, Any]) -> None:
    """Returns when all ranks are done; raises what they ended with."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in [each for each in logging.root.manager.loggerDict if each.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # ranks say themselves why they end
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else the launcher warns; ranks set their threads themselves
    launch = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=ranks, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0",
        run_id="flatout", local_addr="127.0.0.1", max_restarts=config.parallel.max_restarts,
        shutdown_timeout=_SAVE_SECONDS,
    )  # fmt: skip
    launch.signals_to_handle = "SIGQUIT"  # the others are ours; an older torch, without this field, takes them back
    with tempfile.TemporaryDirectory(prefix="flatout-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
        try:
            with _signals_once():
                elastic_launch(launch, sys.executable)("-m", "flatout.app.one_rank", name)
        except (ChildFailedError, SignalException) as error:
            raise _ending(folder, getattr(error, "failures", {}), directory) from None


@contextmanager
def _signals_once() -> Iterator[None]:
    """In place of the launcher's own handlers, which do not mind what nohup ignores, and raise every time: a terminal
    that goes says so twice, and the second SIGHUP would end the wait for the checkpoint. Only Ctrl-C counts again."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    handled = stop_signals() if threading.current_thread() is threading.main_thread() else []

    def end(number: int, frame: FrameType | None) -> None:
        for each in handled:
            if each is not signal.SIGINT:
                signal.signal(each, signal.SIG_IGN)
        raise SignalException(f"got signal {number}", signal.Signals(number))

    previous = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ending(folder: Path, failures: Mapping[int, Any], directory: RunDirectory) -> FlatoutError:
    """The error of the rank that said one; where none could, the signal that killed it."""
    if (folder / "error.json").exists():
        message, code = json.loads((folder / "error.json").read_text(encoding="utf-8"))
        return EndedBySomeRank(message, code)
    killed = {rank: -failure.exitcode for rank, failure in failures.items() if failure.exitcode < 0}
    ended = [f"rank {rank} was killed by signal {number}" for rank, number in killed.items()]
    cause = f"{', '.join(ended) or 'a rank failed'}; the same command resumes from the newest checkpoint"
    mark_failed(directory, cause)
    return RunFailed(cause)
