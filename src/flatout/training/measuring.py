"""Measure a recipe for a few seconds, here or in a process of its own; nothing is written, no run is touched."""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from flatout.config.loading import load_config
from flatout.data.batch import AnyBatch, BatchSource, Failure, LoadStats
from flatout.decisions import Change, Choice
from flatout.decisions.caching import FILLING, KEPT, OFF
from flatout.decisions.loading import DataDecisions
from flatout.engine.device_clock import clock_for
from flatout.engine.devices import Device
from flatout.engine.learner import Learner, build_learner
from flatout.engine.loop import Job, train
from flatout.engine.progress import Progress, StepRecord
from flatout.errors import FlatoutError
from flatout.machine.parents import exit_with_parent
from flatout.timeline import Recorder
from flatout.training.setup import Setup, prepare_compute, prepare_setup

_FOREVER = 10**6
_WARM_UP_STEPS = 3
_LEAST_STEPS = 8
_MOST_COLD = 4.0  # times the seconds asked for: how long an epoch that fills a cache is waited for
_START_SECONDS = 180.0  # import, listing and building on a slow machine


@dataclass(frozen=True)
class Measured:
    """Steps after the warm-up. `failed` says why there are none."""

    batch_size: float = 0.0
    step_seconds: tuple[float, ...] = ()
    wait_seconds: tuple[float, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    stages: LoadStats = field(default_factory=LoadStats)
    loaded_samples: int = 0
    samples_per_epoch: int = 0
    decided: DataDecisions | None = None
    memory_peak_bytes: float | None = None
    failed: str | None = None
    cold_step_seconds: tuple[float, ...] = ()
    """Of the first epoch where it fills a cache; `step_seconds` are then those of later ones, if any was reached."""
    setup_seconds: float = 0.0
    """From the start to the first step, without imports."""
    val_samples: int = 0

    @property
    def step(self) -> float:
        return statistics.fmean(self.step_seconds)

    @property
    def cold_step(self) -> float:
        """Of the first epoch."""
        return statistics.fmean(self.cold_step_seconds or self.step_seconds)

    @property
    def warm_step(self) -> float:
        """Of later epochs. Where none was reached in time: what the loader found that kept samples take, of what
        filling takes, and never below what the step takes besides waiting."""
        choice = self.decided.cache if self.decided is not None else None
        if self.step_seconds != self.cold_step_seconds or choice is None or not choice.is_measured:
            return self.step
        own = self.step - statistics.fmean(self.wait_seconds)
        return max(own, self.step * choice.seconds(KEPT) / choice.seconds(FILLING))

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.step if self.step_seconds else 0.0

    @property
    def wait_share(self) -> float:
        return sum(self.wait_seconds) / max(sum(self.step_seconds), 1e-9)


class OneBatch:
    """A source that never makes anyone wait: the same batch again and again."""

    notes: tuple[str, ...] = ()
    memory_bytes = 0
    stage_is_full: str | None = None

    def __init__(self, batch: Any, batches_per_epoch: int) -> None:
        self.batch = batch
        self.decided: DataDecisions | None = None
        self.changes: list[Change] = []
        self.quarantine: dict[int, Failure] = {}
        self.stages = LoadStats()
        self.batches_per_epoch = batches_per_epoch
        self.samples = batches_per_epoch * len(batch.sample_ids)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[AnyBatch]:
        for index in range(start, self.batches_per_epoch):
            yield replace(self.batch, epoch=epoch, index=index)

    def close(self) -> None:
        pass


def measure(recipe: Mapping[str, Any], seconds: float, synthetic: bool = False) -> Measured:
    """Train scratch weights for `seconds` and say how long the steps took; `synthetic` leaves loading out."""
    began = time.perf_counter()
    endless: dict[str, Any] = {
        "train.epochs": _FOREVER,
        "train.max_steps": None,
        "checkpoint.every_epochs": _FOREVER,
        "checkpoint.every_steps": None,
        "validate.every_epochs": _FOREVER,
    }
    if "data.stage" in load_config(recipe).config.spec.keys:
        endless["data.stage"] = "off"
    setup = prepare_setup(load_config(recipe, endless).config)
    prepare_compute(setup.config, setup.device)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    learner = build_learner(setup.task, setup.config, setup.device)
    data, opened, kind = setup.config.data, setup.opened, setup.device.kind
    workers = Choice(0, "batches are not loaded") if synthetic else opened.choose_workers(data, kind, opened.plan)
    epochs = load_config(recipe).config.train.epochs  # a cache must pay in those of the run, not in endless ones
    loader = opened.open_source(opened.plan, data, workers, device_kind=kind, epochs=epochs)
    with closing(loader):
        source: BatchSource = loader
        if synthetic:
            source = OneBatch(next(iter(loader.epoch(0))), loader.batches_per_epoch)
        decided, set_up = loader.decided, time.perf_counter() - began
        fills = not synthetic and decided is not None and decided.cache is not None and decided.cache.value != OFF
        found = _steps(setup, learner, source, loader.stages, seconds, fills)
        held_out = 0 if setup.dataset.val is None else len(setup.dataset.val)
        return replace(found, decided=decided, setup_seconds=set_up, val_samples=held_out)


class _Window:
    """From the end of the warm-up to the last step. The device is waited for at both ends: what was queued before does
    not count, what is queued in it does."""

    def __init__(self, device: Device, recorder: Recorder, stages: LoadStats) -> None:
        self._device, self._recorder, self._stages = device, recorder, stages
        self._before: tuple[dict[str, float], LoadStats] = ({}, LoadStats())
        self._began: float | None = None
        self.seconds = 0.0
        self.parts: dict[str, float] = {}
        self.stages = LoadStats()

    def _wait(self) -> float:
        with self._recorder.device_wait():
            self._device.wait()
        return time.perf_counter()

    def begin(self) -> None:
        self._began = self._wait()
        self._before = self._recorder.totals(), replace(self._stages)

    def is_over(self, seconds: float) -> bool:
        return self._began is not None and time.perf_counter() - self._began > seconds

    def end(self) -> None:
        assert self._began is not None
        self.seconds = self._wait() - self._began
        parts, stages = self._before
        self.parts = {name: total - parts.get(name, 0.0) for name, total in self._recorder.totals().items()}
        gone = {name: value - getattr(stages, name) for name, value in vars(self._stages).items()}
        self.stages = LoadStats(**gone)


def _steps(
    setup: Setup, learner: Learner, source: BatchSource, stages: LoadStats, seconds: float, fills: bool = False
) -> Measured:
    """`fills`: the first epoch keeps what later ones find. Its steps are kept apart, and steps go on until a few of a
    later epoch are among them, for a while."""
    recorder = Recorder(None)
    recorder.device_clock = clock_for(setup.device)
    window = _Window(setup.device, recorder, stages)
    records: list[StepRecord] = []

    def over() -> str | None:
        if len(records) < _LEAST_STEPS or not window.is_over(seconds):
            return None
        warm = sum(each.epoch > 0 for each in records)
        if fills and warm < _LEAST_STEPS and not window.is_over(_MOST_COLD * seconds):
            return None
        window.end()  # before the loop saves what nobody keeps
        return "measured"

    job = Job(
        setup.config,
        setup.task,
        learner,
        source,
        None,
        recorder,
        Progress(),
        save=lambda progress: None,
        stop_reason=over,
        total_steps=_FOREVER,
        peak_rate=setup.config.train.lr,
    )
    for number, record in enumerate(each for each in train(job) if isinstance(each, StepRecord)):
        if number + 1 == _WARM_UP_STEPS:
            window.begin()
        elif number + 1 > _WARM_UP_STEPS:
            records.append(record)
    full = [record for record in records if record.samples == setup.config.batch_setting] or records
    queued = 0.0  # of each step: what the device still did when the host's part of it was over
    if setup.device.waits:  # a step's own time is that of launching it; only all steps together say what they take
        full, queued = records, (window.seconds - sum(each.step_seconds for each in records)) / len(records)
    batch = statistics.fmean(each.samples for each in full)
    if setup.config.spec.batch_unit == "tokens":  # their samples differ from batch to batch: a few steps say little
        full, batch = records, source.samples / source.batches_per_epoch
    cold = tuple(each.step_seconds + queued for each in full if fills and each.epoch == 0)
    warm = [each for each in full if each.epoch > 0] if fills else full
    return Measured(
        batch,
        tuple(each.step_seconds + queued for each in warm) or cold,
        tuple(each.data_wait_seconds for each in warm or full),
        window.parts,
        window.stages,
        sum(each.samples for each in records),
        len(setup.dataset.train),
        memory_peak_bytes=setup.device.memory_peak_bytes(),
        cold_step_seconds=cold,
    )


def import_seconds() -> float:
    """What a training takes before its first line: interpreter and imports, in a process of their own."""
    started = time.perf_counter()
    imports = [sys.executable, "-c", "import flatout.commands.train"]
    done = subprocess.run(imports, check=False, capture_output=True, timeout=_START_SECONDS)
    return time.perf_counter() - started if done.returncode == 0 else 0.0


def measure_apart(recipe: Mapping[str, Any], seconds: float, synthetic: bool = False) -> Measured:
    """In a process of its own, which is gone when this returns: what runs out of memory there harms nobody here."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(dict(recipe), seconds, synthetic, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds * 10 + _START_SECONDS):
            return Measured(failed=f"no answer after {seconds * 10 + _START_SECONDS:.0f} s")
        answer: Measured = ours.recv()
        return answer
    except EOFError:
        process.join(5)
        return Measured(failed=f"the process died (exit code {process.exitcode}): out of memory, most likely")
    finally:
        ours.close()
        process.kill()
        process.join()


def _context() -> Any:
    """Forked from a server that has imported torch once and computed nothing: a start costs a moment, not seconds."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    return context


def _child(recipe: dict[str, Any], seconds: float, synthetic: bool, answer: Connection) -> None:
    exit_with_parent(os.getppid())
    try:
        measured = measure(recipe, seconds, synthetic)
    except (torch.OutOfMemoryError, MemoryError) as error:
        measured = Measured(failed=f"out of memory: {str(error).splitlines()[0] if str(error) else 'host'}")
    except FlatoutError as error:
        measured = Measured(failed=str(error))
    except RuntimeError as error:  # torch's CPU allocator has no error of its own
        if "alloc" not in str(error):
            raise
        measured = Measured(failed=f"out of memory: {str(error).splitlines()[0]}")
    answer.send(measured)
