"""The training loop, to be read top to bottom. Every second of it has an owner (`span`)."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from flatout.config.schema import Config
from flatout.config.tasks import TASKS, metric_named
from flatout.data.batch import AnyBatch, BatchSource
from flatout.decisions.compute import choose_log_interval
from flatout.engine.copying import Copies, Feed, copies_for
from flatout.engine.learner import Learner
from flatout.engine.parallel import GlobalBatch, Parallel, SingleProcess
from flatout.engine.parameters import group_rates, set_rates
from flatout.engine.precision import LEAST_SCALE, Seen
from flatout.engine.progress import EpochRecord, Progress, Record, StepRecord, UsedBatch
from flatout.engine.schedules import learning_rate, warmup_steps
from flatout.errors import ConfigError, NotFinite, RunFailed
from flatout.sampling import ids_digest
from flatout.tasks.protocol import JudgesSamples, Sums, Task
from flatout.timeline import Recorder

_MOST_UNREAD = 1000  # batches that are remembered by their samples


@dataclass
class Job:
    """Everything one training run works with."""

    config: Config
    task: Task
    learner: Learner
    source: BatchSource
    val_source: BatchSource | None
    recorder: Recorder
    progress: Progress
    save: Callable[[Progress], None]  # writes a checkpoint, of `finite_tensors`
    stop_reason: Callable[[], str | None]  # asked after every step
    total_steps: int
    peak_rate: float | None = None  # train.lr scaled for the number of ranks, where it is
    ranks: Parallel = field(default_factory=SingleProcess)
    stopped: str | None = None  # why training ended before its last step
    gradients_verified: bool = False
    # from the last whose loss was read on: one of them broke what is found broken
    unread: deque[UsedBatch] = field(default_factory=lambda: deque(maxlen=_MOST_UNREAD))
    feed: Feed | None = None  # of the present epoch
    rate: float = 0.0  # of the last step, before the factors of groups

    @cached_property
    def copies(self) -> Copies:
        return copies_for(self.task, self.learner.device)

    @cached_property
    def log_every(self) -> int:
        return choose_log_interval(self.config.train.log_every, self.learner.device.waits).value


def train(job: Job) -> Iterator[Record]:
    """Train from `job.progress` to the end, yielding a record of every step and epoch."""
    config, progress, span = job.config, job.progress, job.recorder.span
    job.stopped = _stop_of_epochs(progress, config)
    while job.stopped is None and not nothing_left(progress, config):
        progress.ended = False
        job.learner.begin_epoch(config.model, progress.epoch)
        job.feed = Feed(job.source.epoch(progress.epoch, progress.batch_index), job.copies, job.recorder)
        while not _steps_done(progress, config):
            started = time.perf_counter()
            with span("data_wait"):
                batch = next(job.feed, None)
            if batch is None:
                break
            record = _step(job, batch, started, time.perf_counter() - started)
            with span("other"):
                if record is not None:
                    yield record
                job.stopped = job.ranks.stop_reason(job.stop_reason)
            if job.stopped is not None:
                break
            if config.checkpoint.every_steps and progress.step % config.checkpoint.every_steps == 0:
                _save(job)
        if job.stopped is None:
            yield from _end_epoch(job)
    if job.stopped is not None:
        _save(job)


def nothing_left(progress: Progress, config: Config) -> bool:
    """Every step is done, and what follows the last one too: a kill between the two leaves the validation to do."""
    return progress.ended and _steps_done(progress, config)


def _steps_done(progress: Progress, config: Config) -> bool:
    """Counted in epochs: a batch that is all quarantine has no step, and the batch size may change between epochs."""
    most = config.train.max_steps
    return progress.epoch >= config.train.epochs or (most is not None and progress.step >= most)


def _stop_of_epochs(progress: Progress, config: Config) -> str | None:
    """Why not to begin the next epoch; the last epoch of all completes the run instead."""
    if progress.epoch < config.epochs_to_train or _steps_done(progress, config):
        return None
    return f"reached stop.after_epochs = {config.stop.after_epochs}"


def _save(job: Job) -> None:
    with job.recorder.span("checkpoint"):
        job.ranks.sync_weights(job.learner)
        job.save(job.progress)


def finite_tensors(learner: Learner, step: int, keep: bool) -> dict[str, Tensor]:
    """What a checkpoint holds, on the CPU, where it is to be kept. All ranks ask together.

    Only finite values become a checkpoint; those that are kept are always good to go back to.
    """
    kept: dict[str, Tensor] = {}
    for name, value in learner.each_tensor():
        if value.is_floating_point() and not value.isfinite().all():
            raise NotFinite(
                f"{name} is not finite after step {step}; this state was not saved, the checkpoint before it is kept. "
                "Lower train.lr, set train.clip_norm, or train.log_every=1 to stop sooner"
            )
        if keep:
            kept[name] = value.cpu()
    return kept


def _step(job: Job, batch: AnyBatch, started: float, data_wait_seconds: float) -> StepRecord | None:
    """One optimizer step on one batch; None where every sample of it is in quarantine."""
    learner, task, progress, span, ranks = job.learner, job.task, job.progress, job.recorder.span, job.ranks
    cpu_before = time.thread_time()
    job.recorder.step = progress.step + 1
    job.unread.append(_used(batch, progress.step + 1))
    reads_loss = (progress.step + 1) % job.log_every == 0 or not job.gradients_verified
    with span("copy"):
        inputs = job.copies.inputs(batch)
    selects = job.config.train.selects(batch.epoch)
    if selects and len(batch.sample_ids) > 0:
        inputs = _harder(job, inputs)
    global_batch = ranks.exchange_batch(progress.step + 1, task.weight(inputs), batch, job.stop_reason)
    if len(batch.sample_ids) == 0 and global_batch.samples == 0:
        progress.batch_index += 1
        return None
    rate = _set_learning_rate(job)
    if len(batch.sample_ids) > 0:
        total_loss = _forward_backward(job, task.parts(inputs, job.config.train.accumulate), global_batch)
    else:  # the others have samples, and wait for this rank's part of the exchange
        with ranks.idle(learner.model):
            total_loss = _forward_backward(job, [(task.filler(inputs), 0.0)], global_batch)
    clip_norm, losses = job.config.train.clip_norm, None
    with span("optimizer"):
        wanted = clip_norm is not None or (reads_loss and learner.precision.scaler is None)
        norm = learner.precision.gradient_norm(learner.optimizer, learner.model.parameters(), wanted)
    if reads_loss:
        data_wait_seconds += _look_ahead(job)
        with job.recorder.device_wait():
            seen = learner.precision.read(total_loss, norm)
        losses = ranks.losses(seen.loss)
        with span("optimizer"):
            _verify(job, batch, losses.mean, seen)
    with span("optimizer"):
        learner.precision.step(learner.optimizer, learner.model.parameters(), clip_norm, norm)
        learner.optimizer.zero_grad(set_to_none=True)
        if learner.lookahead is not None:
            learner.lookahead.after_batch(learner.model, batch.index)
        if learner.ema is not None:
            learner.ema.update(learner.model)
    ranks.after_step(learner, progress.step + 1, batch.epoch)
    with span("other"):
        digest, loss_value = ids_digest(global_batch.ids.numpy()), None if losses is None else losses.mean
        _advance(progress, global_batch.samples, loss_value)
        by_rank = () if losses is None else astuple(losses)[1:]
        return StepRecord(
            progress.step,
            progress.epoch,
            batch.index,
            global_batch.samples,
            digest,
            loss_value,
            rate,
            time.perf_counter() - started,
            data_wait_seconds,
            time.time(),
            time.thread_time() - cpu_before,
            *by_rank,
            skipped_samples=round(global_batch.samples - global_batch.weight) if selects else None,
            group_rates=group_rates(learner.optimizer.param_groups),  # type: ignore[misc]  # *by_rank ends before it
        )


def _harder(job: Job, inputs: Any) -> Any:
    """What of the inputs is to be trained on (train.selective), by the model as it would be validated."""
    learner = job.learner
    learner.model.eval()
    try:
        with job.recorder.span("forward"), torch.no_grad(), learner.precision.autocast():
            return cast(JudgesSamples, job.task).harder(learner.compute, inputs)
    finally:
        learner.model.train()


def _look_ahead(job: Job) -> float:
    """On CUDA: after a wait for the device the next copy would find it idle. Counted are batches that were trained."""
    most = job.config.train.max_steps
    if job.feed is None or (most is not None and job.progress.step + 1 >= most):
        return 0.0
    return job.feed.look_ahead()


def _forward_backward(job: Job, parts: Sequence[tuple[Any, float]], global_batch: GlobalBatch) -> Tensor:
    """This rank's share of the mean loss; afterwards every parameter has the gradient of the global batch."""
    learner, span, ranks = job.learner, job.recorder.span, job.ranks
    total_loss = torch.zeros((), device=learner.device.torch)
    for number, (part, share) in enumerate(parts, 1):
        ranks.sync_next(number == len(parts))
        with span("forward"), learner.precision.autocast():
            loss = job.task.loss(learner.wrapped, part) * (share * global_batch.scale)
        with span("backward"), ranks.exchange():
            learner.precision.backward(loss)
            total_loss += loss.detach()
    return total_loss


def _set_learning_rate(job: Job) -> float:
    train = job.config.train
    warmup = warmup_steps(train, job.source.batches_per_epoch)
    done = job.progress.epoch * job.source.batches_per_epoch + job.progress.batch_index
    peak = train.lr if job.peak_rate is None else job.peak_rate
    job.rate = learning_rate(train, done, job.total_steps, peak, warmup)
    set_rates(job.learner.optimizer.param_groups, job.rate)
    return job.rate


def _used(batch: AnyBatch, step: int) -> UsedBatch:
    ids = batch.sample_ids if batch.whole_ids is None else batch.whole_ids
    return UsedBatch(step, batch.epoch, batch.index, ids.clone())  # a loader may use the batch's memory again


def _verify(job: Job, batch: AnyBatch, loss: float, seen: Seen) -> None:
    """Before the optimizer commits: a finite loss and gradient, and once per attempt a gradient for every parameter."""
    at = f"at step {job.progress.step + 1} (epoch {batch.epoch}, batch {batch.index})"
    if not math.isfinite(loss):
        raise NotFinite(
            f"the loss is {loss} {at}; "
            "the weights were not updated. Lower train.lr, set train.clip_norm, or look at bad_batch.json"
        )
    if seen.scale is not None and seen.scale < LEAST_SCALE:
        raise NotFinite(f"fp16 gradients overflow even at a loss scale of {seen.scale:g}; use bf16 or a lower train.lr")
    if seen.gradient_norm is not None and not math.isfinite(seen.gradient_norm):
        raise NotFinite(
            f"the norm of the gradient is {seen.gradient_norm} {at}, first in {_first_broken(job.learner)}; "
            "the weights were not updated. Lower train.lr or look at bad_batch.json"
        )
    while len(job.unread) > 1:  # what this step makes of the weights is seen at the next read
        job.unread.popleft()
    if not job.gradients_verified:
        for name, parameter in job.learner.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise RunFailed(
                    f"parameter {name} received no gradient in the first step: it would never be trained; use it in "
                    "the model's forward, remove it, or name it in model.freeze"
                )
        job.gradients_verified = True


def _first_broken(learner: Learner) -> str:
    """The parameter, in the model's order, whose gradient is not finite."""
    gradients = ((name, p.grad) for name, p in learner.model.named_parameters() if p.grad is not None)
    return next((name for name, gradient in gradients if not gradient.isfinite().all()), "no parameter: only their sum")


def _advance(progress: Progress, count: int, loss: float | None) -> None:
    progress.step += 1
    progress.batch_index += 1
    progress.samples_seen += count
    progress.epoch_samples += count
    if loss is not None:
        progress.loss_sum += loss * count
        progress.loss_samples += count


def _end_epoch(job: Job) -> Iterator[Record]:
    """Validate, record, decide whether to go on, save."""
    config, progress = job.config, job.progress
    with job.recorder.device_wait():  # else what is still queued would be counted as validation
        job.learner.device.wait()
    if job.learner.lookahead is not None:
        with job.recorder.span("optimizer"):
            job.learner.lookahead.meet(job.learner.model)
    finished = progress.epoch + 1
    whole = progress.batch_index >= job.source.batches_per_epoch
    last = _steps_done(progress, config) or (whole and finished >= config.train.epochs)
    train_loss = progress.loss_sum / progress.loss_samples if progress.loss_samples else None
    metrics: dict[str, float] = {}
    validates = last or finished == config.stop.after_epochs or finished % config.validate_.every_epochs == 0
    if job.val_source is not None and validates:
        with job.recorder.span("validation"):
            job.ranks.sync_weights(job.learner)
            metrics = evaluate(job)
        _judge(job, {**metrics, **({} if train_loss is None else {"train_loss": train_loss})})
    record = EpochRecord(
        progress.epoch, progress.step, progress.epoch_samples, train_loss, metrics, job.rate, time.time()
    )
    if whole:
        progress.epoch, progress.batch_index = finished, 0
        progress.epoch_samples, progress.loss_sum, progress.loss_samples = 0, 0.0, 0
    with job.recorder.span("other"):
        yield record
    if not last and job.stopped is None:
        job.stopped = _stop_of_epochs(progress, config)
        patience = config.stop.patience_epochs
        if patience is not None and progress.validations_since_best >= patience:
            job.stopped = f"no better {config.checkpoint.metric} for {patience} validations (stop.patience_epochs)"
    progress.ended = last
    if last or (job.stopped is None and finished % config.checkpoint.every_epochs == 0):
        _save(job)


def _judge(job: Job, metrics: dict[str, float]) -> None:
    progress, name = job.progress, job.config.checkpoint.metric
    progress.metrics = metrics
    value = metrics.get(name)
    if value is None and job.config.task not in TASKS:  # which metrics there are, only its author knew
        raise ConfigError(
            f"checkpoint.metric is {name}, but {job.config.task} gives {', '.join(metrics)}; use one of them"
        )
    if value is None:
        return
    higher = metric_named(name).higher_is_better
    if progress.best is None or (value > progress.best if higher else value < progress.best):
        progress.best, progress.best_epoch, progress.validations_since_best = value, progress.epoch, 0
    else:
        progress.validations_since_best += 1


def evaluate(job: Job) -> dict[str, float]:
    """Metrics over the whole validation split, with the averaged weights where there are any."""
    assert job.val_source is not None
    by_batch: list[Sums] = []
    with job.ranks.validating(), job.learner.evaluating():
        feed = Feed(job.val_source.epoch(0), job.copies)
        for batch in feed:
            inputs = job.copies.inputs(batch)
            feed.look_ahead()  # each batch ends with a wait for the device
            with job.learner.precision.autocast():
                by_batch.append(job.task.evaluate(job.learner.compute, inputs))
    sums: Sums = {}
    for one in job.ranks.in_order(by_batch):  # added in the order of the batches: the same on any number of ranks
        for name, value in one.items():
            sums[name] = sums.get(name, 0.0) + value
    return job.task.metrics(sums)
