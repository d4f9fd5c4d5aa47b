"""Start the ranks of one machine through torch's elastic launcher, and raise the error that they ended with."""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from flatout.config.loading import dump_config
from flatout.config.schema import Config
from flatout.errors import EndedBySomeRank, FlatoutError, Interrupted, RunFailed
from flatout.runs import RunDirectory
from flatout.runs.directory import mark_ended, mark_failed
from flatout.training.stopping import signal_name, stop_signals

_RESUMES = "the same command resumes from the newest checkpoint"
_MEET_SECONDS = 60
_SAVE_SECONDS = 60  # from SIGTERM to the end of the checkpoint; then a rank is killed


def launch_ranks(module: str, config: Config, ranks: int, directory: RunDirectory, options: Mapping[str, Any]) -> None:
    """Returns when all ranks are done; raises what they ended with.

    Each rank is `python -m module FOLDER PARENT`: the folder holds config.yaml and options.json, and a rank that fails
    leaves [message, exit code, details] there as error.json.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from flatout.engine.parallel.group import loopback_store

    for name in [each for each in logging.root.manager.loggerDict if each.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # ranks say themselves why they end
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # else the launcher warns; ranks set their threads themselves
    store = loopback_store(0, timedelta(seconds=_MEET_SECONDS))  # before the launcher makes one for every interface
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="static",  # one machine: nobody to wait for, and no second store
        rdzv_endpoint=f"127.0.0.1:{store.port}",
        rdzv_configs={"rank": 0, "timeout": _MEET_SECONDS},
        run_id="flatout",
        local_addr="127.0.0.1",
        max_restarts=config.parallel.max_restarts,
        shutdown_timeout=_SAVE_SECONDS,
    )
    launch.signals_to_handle = "SIGQUIT"  # the others are ours; an older torch, without this field, takes them back
    with tempfile.TemporaryDirectory(prefix="flatout-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
        try:
            with _signals_once(lambda: _stop_now(module, directory)):
                elastic_launch(launch, sys.executable)("-m", module, name, str(os.getpid()))
        except ChildFailedError as error:
            raise _ending(folder, error.failures, directory) from None
        except SignalException as error:
            raise _said_by_rank(folder) or _stopped(signal.Signals(error.sigval), directory) from None


@contextmanager
def _signals_once(stop_now: Callable[[], None]) -> Iterator[None]:
    """In place of the launcher's own handlers, which do not mind what nohup ignores, and raise every time: a terminal
    that goes says so twice, and the second SIGHUP would end the wait for the checkpoint. Only Ctrl-C
    counts again: ranks have sessions of their own, so `stop_now` ends them."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    handled = stop_signals() if threading.current_thread() is threading.main_thread() else []

    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and bool(received)
        received.append(number)
        for each in handled:
            if again or each is not signal.SIGINT:
                signal.signal(each, signal.SIG_IGN)
        if again:
            stop_now()
        raise SignalException(f"got signal {number}", signal.Signals(number))

    previous = {number: signal.signal(number, end) for number in handled}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _said_by_rank(folder: Path) -> FlatoutError | None:
    if not (folder / "error.json").exists():
        return None
    message, code, details = json.loads((folder / "error.json").read_text(encoding="utf-8"))
    error = EndedBySomeRank(message, code)
    error.details = tuple(details)
    return error


def _stopped(number: signal.Signals, directory: RunDirectory) -> FlatoutError:
    """By a signal, before any rank could say so: while they start, or by a second Ctrl-C."""
    name = signal_name(number)
    mark_ended(directory, "stopped", f"{name}; {_RESUMES}")
    return Interrupted(f"stopped by {name}; the same command goes on from the newest checkpoint, or starts")


def _stop_now(module: str, directory: RunDirectory) -> None:
    """Kill the ranks, without a checkpoint; the launcher notices that they are gone."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if module in child.cmdline():
                child.kill()
    mark_ended(directory, "stopped", f"Ctrl-C, twice; {_RESUMES}")


def _ending(folder: Path, failures: Mapping[int, Any], directory: RunDirectory) -> FlatoutError:
    """The error of the rank that said one; where none could, the signal that killed it."""
    if (said := _said_by_rank(folder)) is not None:
        return said
    killed = {rank: -failure.exitcode for rank, failure in failures.items() if failure.exitcode < 0}
    ended = [f"rank {rank} was killed by signal {number}" for rank, number in killed.items()]
    cause = f"{', '.join(ended) or 'a rank failed'}; {_RESUMES}"
    mark_failed(directory, cause)
    return RunFailed(cause)
