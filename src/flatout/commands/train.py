"""Train a recipe into a run directory; the same call again goes on where it stopped."""

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.decisions import Choice
from flatout.decisions.compute import precision_is_open
from flatout.engine import checkpoint
from flatout.engine.cuda_defaults import with_precision
from flatout.engine.learner import Learner
from flatout.engine.parallel import Parallel
from flatout.engine.parallel.joining import apply_parallelism, devices_per_node, needs_launch, own_place, process_group
from flatout.errors import FlatoutError, Interrupted, RunDirectoryError, RunFailed
from flatout.machine.parents import last_words
from flatout.runs import Run, RunDirectory, read_run
from flatout.runs.directory import mark_ended, mark_failed, read_json
from flatout.runs.rebuilding import KILLED
from flatout.timeline.startup import StartupClock
from flatout.training.display import Display
from flatout.training.launching import launch_ranks
from flatout.training.session import Session
from flatout.training.setup import (
    Setup,
    first_weights,
    folder_name,
    memory_explained,
    new_learner,
    prepare_setup,
    run_precision,
)
from flatout.training.stopping import StopSignals

_RANK_MODULE = "flatout.commands.one_rank"


@dataclass(frozen=True)
class _Request:
    """What is to be trained, and where."""

    config: Config
    directory: RunDirectory
    fresh: bool  # set an older run aside instead of going on with it
    warm_start: str | Path | None


def run_folder(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, run: str | Path | None = None
) -> Path:
    """Where `train_run` will train this recipe."""
    return _folder(load_config(source, overrides).config, run)


def _folder(config: Config, run: str | Path | None) -> Path:
    return Path(run) if run is not None else Path("runs") / folder_name(config.name)


def train_run(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    run: str | Path | None = None,
    fresh: bool = False,
    warm_start: str | Path | None = None,
    accept_changed_data: bool = False,
    quiet: bool = True,
    whole_process: bool = False,
) -> Run:
    """Train and return the run. Raises a FlatoutError with the cause if it does not complete.

    `whole_process` counts the time of the process from its start, as the command line does.
    """
    started = None if whole_process else time.perf_counter()
    startup = StartupClock()
    config = load_config(source, overrides).config
    directory = RunDirectory(_folder(config, run))
    place = own_place(config)
    fresh = fresh and (place is None or place.attempt == 0)  # ranks that are started again go on
    if needs_launch(config, place):
        options = {
            "run": str(directory.root.absolute()),
            "fresh": fresh,
            "accept_changed_data": accept_changed_data,
            "warm_start": None if warm_start is None else str(warm_start),
            "quiet": quiet,
        }
        launch_ranks(_RANK_MODULE, config, devices_per_node(config), directory, options)
        return read_finished(directory)
    with process_group(config, place) as ranks, ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        precision: Choice[str] | None = None
        if precision_is_open(config):  # of all ranks, whatever cards they have; refused where one has it not
            precision = ranks.together(lambda: run_precision(config, directory, fresh or ranks.rank != 0))
            config = with_precision(config, ranks.group.from_main(precision.value))
        request = _Request(config, directory, fresh, warm_start)
        try:
            setup, learner = ranks.together(lambda: _prepare(request, ranks, signals, startup, stack))
        except Interrupted:
            with suppress(FlatoutError):  # what an attempt that was killed left is not running any more
                mark_failed(directory, KILLED)
            raise
        display = stack.enter_context(Display(quiet or ranks.rank != 0))
        if ranks.rank == 0:
            signals.last_words = lambda cause: mark_ended(directory, "stopped", cause)
        session = Session(setup, learner, directory, display, signals, ranks, startup, precision)
        stack.callback(session.close)
        session.run(warm_start, accept_changed_data, started)
    return read_finished(directory) if ranks.rank == 0 else Run.elsewhere(directory.root)


def read_finished(directory: RunDirectory) -> Run:
    """A run that ended well a moment ago."""
    if not directory.exists:
        raise RunFailed(f"the run ended well, but {directory.root} was deleted or moved since, weights and all")
    return read_run(directory.root)


def _prepare(
    request: _Request, ranks: Parallel, signals: StopSignals, startup: StartupClock, stack: ExitStack
) -> tuple[Setup, Learner]:
    """Take the directory, and build all that can be refused. Only then is an older run set aside."""
    config, directory, fresh = request.config, request.directory, request.fresh
    if ranks.rank == 0:
        directory.lock()  # first: a second process is refused before it lists a dataset or builds a model
        stack.callback(directory.unlock)
        stack.enter_context(last_words(lambda cause: mark_failed(directory, f"{cause}; the same command resumes")))
        if read_json(directory.summary).get("imported") and not fresh:
            raise RunDirectoryError(
                f"{directory.root} holds an imported log; choose another --run DIR, or --fresh to move it aside"
            )
    with signals.at_once():
        setup = prepare_setup(config, ranks, None if fresh else directory.root, startup)
        begins = fresh or not checkpoint.list_saved(directory.checkpoints)
        with startup.part("model"), memory_explained(config):
            weights = first_weights(config, request.warm_start)
            learner = new_learner(setup, weights if begins else None)
            apply_parallelism(learner, config, ranks.world_size)
    if fresh and ranks.rank == 0:
        _set_aside(directory)
    return setup, learner


def _set_aside(directory: RunDirectory) -> None:
    directory.unlock()  # removes what the lock alone had made
    if directory.root.exists():
        directory.set_aside()
    directory.lock()
