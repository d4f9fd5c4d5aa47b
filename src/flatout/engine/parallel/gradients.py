"""Gradients from rank to rank while backward still runs: DDP's buckets, compressed and timed."""

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from flatout.config.schema import ParallelConfig
from flatout.engine.parallel.powersgd import PowerSgd
from flatout.timeline import Recorder

_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Sent:
    """One bucket of one step; times are of time.perf_counter()."""

    bucket: int
    bytes: int
    ready: float
    finished: float


class GradientExchange:
    """Wraps the model in DDP. On a CPU the hook runs in the main thread, so what follows the last bucket is waiting."""

    def __init__(self, model: nn.Module, config: ParallelConfig, recorder: Recorder) -> None:
        self.sent: list[Sent] = []  # of the last step
        self.ready: float | None = None  # when the last bucket of the last step was
        self.powersgd: PowerSgd | None = None
        self._recorder = recorder
        self._half = _HALVES.get(config.compress)
        self._world_size = dist.get_world_size()
        self._waits = False
        if config.compress == "powersgd":
            names = {id(parameter): name for name, parameter in model.named_parameters()}
            self.powersgd = PowerSgd(names, config.powersgd_rank, config.powersgd_start_step)
        with warnings.catch_warnings():  # torch 2.13 has a new name for broadcast_buffers, torch 2.6 does not know it
            warnings.simplefilter("ignore", FutureWarning)
            self.wrapped = DistributedDataParallel(
                model,
                bucket_cap_mb=config.bucket_bytes / 2**20,
                broadcast_buffers=False,  # rank 0's count, and are sent when they matter: `sync_weights`
                gradient_as_bucket_view=True,
                init_sync=False,  # weights are equal by seed or by checkpoint, and compared before the first step
            )
        self.wrapped.register_comm_hook(None, self._hook)

    def sync_next(self, wanted: bool) -> None:
        self.wrapped.require_backward_grad_sync = wanted  # what DDP's no_sync() does, without a second nesting

    @contextmanager
    def exchange(self) -> Iterator[None]:
        self.sent, self.ready = [], None
        try:
            yield
        finally:
            if self._waits:
                self._waits = False
                self._recorder.span("communication").__exit__(None, None, None)
        for each in self.sent:
            self._recorder.lane("communication", f"bucket {each.bucket}", each.ready, each.finished - each.ready)

    def _hook(self, _: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        ready, index, size = time.perf_counter(), bucket.index(), bucket.buffer().nbytes
        if bucket.is_last():
            self.ready = ready
            if threading.current_thread() is threading.main_thread():
                self._waits = True
                self._recorder.span("communication").__enter__()
        future = self._reduced(bucket)

        def note(done: torch.futures.Future[Any]) -> Tensor:
            self.sent.append(Sent(index, size, ready, time.perf_counter()))
            value: Any = done.value()
            return value  # type: ignore[no-any-return]

        return future.then(note)

    def _reduced(self, bucket: GradBucket) -> torch.futures.Future[Any]:
        whole = bucket.buffer()
        if self.powersgd is not None and self.powersgd.begun:
            self.powersgd.reduce(bucket)
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(whole)
            return future
        small = whole if self._half is None else whole.to(self._half)
        work = dist.all_reduce(small.div_(self._world_size), async_op=True)
        assert work is not None

        def restore(_: torch.futures.Future[Any]) -> Tensor:
            if small is not whole:
                whole.copy_(small)
            return whole

        return work.get_future().then(restore)  # type: ignore[no-any-return]
