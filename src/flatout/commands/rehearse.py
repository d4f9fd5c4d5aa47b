"""A dry run for a GPU that is not here: the real data path, then everything that mixes tensors, devices and state on
fake CUDA tensors. It finds what would fail in the first minute on a rented machine; it measures nothing."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

import flatout
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.data.pixels import normalize
from flatout.engine.cuda_defaults import choose_precision, say_arithmetic
from flatout.engine.devices import Device
from flatout.engine.ema import average_for
from flatout.engine.fake_cuda import CUDA, autocast_to, fake_device, fakes, moved
from flatout.engine.learner import Learner
from flatout.engine.lookahead import Lookahead
from flatout.engine.optimizers import optimizer_for
from flatout.engine.precision import DTYPES, build_precision
from flatout.errors import ConfigError, RunFailed
from flatout.tasks.setup import TaskSetup, open_task

_AUTOCAST = {**DTYPES, "fp32": None}
_LIMITS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)
_LIMIT_TEXTS = ("not linked with support for cuda", "not compiled with CUDA", ".numpy() is not supported")
_NEVER = (
    "backward on the device: it is rehearsed on fake CPU tensors; torch records no gradients of a GPU that is not here",
    "kernels, their speed, memory and rounding; the device's random state; pinned memory, streams and events",
    "writing the checkpoint's bytes: only where its tensors come from and go to",
)


@dataclass
class Rehearsal:
    """What went through, what fake tensors cannot show, and what failed: one line each."""

    rehearsed: list[str] = field(default_factory=list)
    not_rehearsed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        for title, lines in (("ok", self.rehearsed), ("not rehearsed", self.not_rehearsed), ("FAILED", self.failed)):
            yield from (f"{title:<15}{line}" for line in lines)

    def part(self, name: str, work: Callable[[], str]) -> None:
        """One part of a run; it goes on with the next one, whose own failure may have another cause."""
        try:
            self.rehearsed.append(f"{name}: {work()}")
        except Exception as error:
            said = f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]} ({_own_line(error)})"
            limit = isinstance(error, _LIMITS) or any(text in str(error) for text in _LIMIT_TEXTS)
            (self.not_rehearsed if limit else self.failed).append(said)


def rehearse(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, device: str = "cuda"
) -> Rehearsal:
    """Needs no GPU and writes no run. Whatever is wrong with the recipe or the data is raised as `train` would."""
    if device != "cuda":
        raise ConfigError(f"--rehearse is {device!r}; only cuda can be rehearsed, other devices are here or not")
    config = load_config(source, {**(overrides or {}), "device": "cuda"}).config
    opened, rehearsal = open_task(config), Rehearsal()
    rehearsal.rehearsed += say_arithmetic(config, fake_device())
    batches = _batches(opened, config)
    rehearsal.rehearsed.append(f"data: {len(batches[0].sample_ids)} samples of the first batch, by the real loader")
    torch.manual_seed(config.train.seed)
    try:
        with fakes():
            stage = _Stage(config, opened, batches)
            for name in ("model", "copy", "forward", "backward", "optimizer", "checkpoint", "resume", "validation"):
                rehearsal.part(name, getattr(stage, name))
    finally:
        normalize._constants.cache_clear()  # else a run after this, in the same process, would meet fake ones
    rehearsal.not_rehearsed += [*_NEVER, *_left_out(config)]
    return rehearsal


class _Stage:
    """One rank's learner on a fake device, and the parts of a run in their order."""

    def __init__(self, config: Config, opened: TaskSetup, batches: list[Any]) -> None:
        self._config, self._task = config, opened.task
        self._train_batch, self._val_batch = batches
        self._precision = choose_precision(config, fake_device())
        self._learner: Learner | None = None
        self._inputs: Any = None
        self._saved: dict[str, Tensor] = {}
        self._devices: dict[str, torch.device] = {}

    def _new_model(self) -> nn.Module:
        model = self._task.build_model()
        if self._config.train.channels_last:
            for name, weight in [*model.named_parameters()]:
                if weight.ndim == 4:
                    owner, _, last = name.rpartition(".")
                    channels_last = weight.detach().contiguous(memory_format=torch.channels_last)
                    model.get_submodule(owner)._parameters[last] = nn.Parameter(channels_last)
        return model

    def model(self) -> str:
        self._learner = self._new_learner()
        weights = [*self._learner.model.parameters()]
        return f"{self._config.model.name}, {sum(each.numel() for each in weights):,} weights on {weights[0].device}"

    def _new_learner(self) -> Learner:
        train = self._config.train
        model = moved(self._new_model(), CUDA, trains=True)
        ema = average_for(model, train)
        ahead = None if train.lookahead is None else Lookahead.start(model, train.lookahead, train.lookahead_share)
        precision = build_precision("fp32" if self._precision == "fp16" else self._precision, "cuda")
        # not the kind cuda: its random state is where no fake can go
        there = Device("fake", CUDA, "")
        return Learner(model, model, model, optimizer_for(model, train), precision, ema, there, ahead)

    @property
    def _whole(self) -> Learner:
        assert self._learner is not None, "there is no model, see above"
        return self._learner

    def copy(self) -> str:
        self._inputs = self._task.to_device(self._train_batch, CUDA)
        return f"a training batch to {CUDA}"

    @contextmanager
    def _computing(self) -> Iterator[nn.Module]:
        model = self._whole.model
        model.requires_grad_(False)  # what autograd would record aborts the process
        try:
            with torch.no_grad(), autocast_to(_AUTOCAST[self._precision]):
                yield model
        finally:
            model.requires_grad_(True)

    def forward(self) -> str:
        with self._computing() as model:
            parts = self._task.parts(self._inputs, self._config.train.accumulate)
            losses = [self._task.loss(model.train(), part) * share for part, share in parts]
        return f"a training step's loss in {self._precision}, {len(losses)} part(s), on {losses[0].device}"

    def backward(self) -> str:
        model = moved(self._new_model(), torch.device("cpu"), trains=True)
        inputs, dtype = self._task.to_device(self._train_batch, torch.device("cpu")), _AUTOCAST[self._precision]
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = self._task.loss(model.train(), inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        without = [name for name, weight in model.named_parameters() if weight.grad is None]
        if without:
            raise RunFailed(f"parameter {without[0]} received no gradient: it would never be trained")
        return f"a gradient for each of {sum(1 for _ in model.parameters())} parameters, on fake CPU tensors"

    def optimizer(self) -> str:
        learner = self._whole
        for weight in learner.model.parameters():
            weight.grad = torch.empty_like(weight)
        clip_norm, weights = self._config.train.clip_norm, [*learner.model.parameters()]
        with torch.no_grad(), _without_fused_sgd():
            norm = learner.precision.gradient_norm(learner.optimizer, weights, clip_norm is not None)
            learner.precision.step(learner.optimizer, weights, clip_norm, norm)
        if learner.lookahead is not None:
            learner.lookahead.meet(learner.model)
        if learner.ema is not None:
            learner.ema.update(learner.model)
        fused = learner.optimizer.defaults.get("fused")
        return f"{learner.optimizer.kind}{', fused' if fused else ''}{', averaged' if learner.ema is not None else ''}"

    def checkpoint(self) -> str:
        with torch.no_grad():
            live = self._whole.tensors()
            self._devices = {name: value.device for name, value in live.items()}
            self._saved = {name: value.to("cpu") for name, value in live.items()}
        return f"{len(self._saved)} tensors to the CPU"

    def resume(self) -> str:
        assert self._saved, "there is no checkpoint, see above"
        self._learner = self._new_learner()
        with torch.no_grad():
            self._learner.load(self._saved)
            for name, value in self._learner.tensors().items():  # a fused kernel's fake does not mind where they are
                if value.device != (before := self._devices[name]):
                    raise RunFailed(f"{name} was on {before} and is on {value.device} after a resume")
        self.optimizer()
        return "a new learner takes them over and makes a step"

    def validation(self) -> str:
        if self._val_batch is None:
            return "there is no validation split"
        inputs = self._task.to_device(self._val_batch, CUDA)
        with self._computing() as model:
            figures = self._task.metrics(self._task.evaluate(model.eval(), inputs))
        return f"{', '.join(figures)} of one batch"


def _batches(opened: TaskSetup, config: Config) -> list[Any]:
    """The first batch for training, and for validation where there is a split for it."""
    found: list[Any] = []
    for plan in (opened.plan, opened.val_plan):
        if plan is None:
            found.append(None)
            continue
        with closing(opened.open_source(plan, config.data, 0, look_ahead=False)) as loader:
            found.append(next(iter(loader.epoch(0))))
    return found


@contextmanager
def _without_fused_sgd() -> Iterator[None]:
    """torch has no fake of this one kernel."""
    kept = torch._fused_sgd_
    torch._fused_sgd_ = lambda *_, **__: None
    try:
        yield
    finally:
        torch._fused_sgd_ = kept


def _left_out(config: Config) -> Iterator[str]:
    if config.train.precision == "fp16":
        yield "the gradient scaler of fp16"
    if config.train.compile:
        yield "train.compile: what it makes of the model"
    if config.parallel.mode != "single":
        yield f"parallel.mode {config.parallel.mode}: the exchange between ranks; one rank alone was rehearsed"
    if config.data.shared != "off":
        yield "data.shared: the batches came from a loader of its own"


def _own_line(error: BaseException) -> str:
    """Where in flatout or in the user's own code; the rest of the way is torch's."""
    frames = traceback.extract_tb(error.__traceback__)
    torchs = str(Path(torch.__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith(torchs)]
    frame = (own or list(frames))[-1]
    root = Path(flatout.__file__).parent.parent
    path = Path(frame.filename)
    return f"{path.relative_to(root) if path.is_relative_to(root) else path}:{frame.lineno}: {frame.line}"
