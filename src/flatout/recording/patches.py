"""The hooks in torch: public ones where there are any, patches where there are none. Each can be taken out again.

None of them draws a random number, waits for a device or changes a value: a recorded run computes what a bare one
does, to the bit.
"""

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch.utils.data import _utils, dataloader, default_collate, default_convert, get_worker_info

from flatout.recording.fetching import (
    LOADER,
    BatchTimes,
    WorkerDiary,
    clock_of_thread,
    patch_decoders,
    timed_collate,
)
from flatout.recording.gradients import GradientHooks
from flatout.recording.ledger import ScriptLedger
from flatout.recording.loaders import shape_at_hand

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "barrier",
    "reduce",
    "reduce_scatter_tensor",
    "gather",
    "scatter",
    "all_to_all_single",
)
_BEGIN_FETCH, _END_FETCH, _FETCHED_HERE = ScriptLedger.begin_fetch, ScriptLedger.end_fetch, ScriptLedger.fetched_here
_BEGIN_CALL, _END_CALL = ScriptLedger.begin_call, ScriptLedger.end_call
_BEGIN_OPTIMIZER, _END_OPTIMIZER = ScriptLedger.begin_optimizer, ScriptLedger.end_optimizer
_get_ident = threading.get_ident
_is_grad_enabled = torch.is_grad_enabled


class Hooks:
    """Everything that is hooked for one process; `ledger` may change (a fork), the hooks stay."""

    def __init__(self, ledger: ScriptLedger | None) -> None:
        self.ledger = ledger
        self.count_steps = True
        """Whether an optimizer's step is a step of the run; not where the script says itself what is one."""
        self.missing: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._decoders: set[tuple[str, str | None, str]] = set()
        self._modules = 0  # that were imported when decoders were looked for
        self._diary: WorkerDiary | None = None
        self._diary_pid = 0
        self._gradients = GradientHooks(self)

    def install(self) -> None:
        """What cannot be hooked is said in the run; the rest is."""
        for name, install in (
            ("optimizer steps", self._hook_optimizers),
            ("modules", self._hook_modules),
            ("backward", self._gradients.hook_backward),
            ("GradScaler", self._gradients.hook_scaling),
            ("DataLoader", self._hook_loaders),
            ("loader workers", self._hook_fetchers),
            ("torch.save", lambda: self.patch(torch, "save", lambda save: self._as_part("checkpoint", save))),
            ("copies to the device", self._hook_copies),
            ("collectives", self._hook_collectives),
        ):
            try:
                install()
            except Exception as error:
                self.missing.append(f"{name} cannot be hooked: {type(error).__name__}: {error}")

    def remove(self) -> None:
        self.ledger = None
        while self._undo:
            self._undo.pop()()

    def mine(self) -> ScriptLedger | None:
        """The ledger, where this is its thread."""
        ledger = self.ledger
        return ledger if ledger is not None and ledger.active and _get_ident() == ledger.thread else None

    def patch(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        patched = functools.wraps(original)(wrapper(original))
        setattr(owner, name, patched)
        self._undo.append(lambda: setattr(owner, name, original))

    # ---- optimizers: torch's own global hooks

    def _hook_optimizers(self) -> None:
        before = optimizers.register_optimizer_step_pre_hook(self._before_step)
        after = optimizers.register_optimizer_step_post_hook(self._after_step)
        self._undo += [before.remove, after.remove]

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        ledger = self.ledger
        if ledger is not None and ledger.events.rank is None and ledger.active:
            ledger.thread = _get_ident()  # who steps is who trains
        if ledger is not None and _get_ident() == ledger.thread:
            ledger.saw(_BEGIN_OPTIMIZER)
            return self._with_closure_apart(args, kwargs)
        return None

    def _with_closure_apart(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """What step(closure) calls is the script's own code, not the optimizer's."""
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._as_part("other", closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._as_part("other", args[1]), *args[2:]), kwargs
        return None

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ledger = self.ledger
        if ledger is None or _get_ident() != ledger.thread:
            return
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        ledger.saw(_END_OPTIMIZER, id(optimizer), rate if isinstance(rate, (float, int)) else None, self.count_steps)

    # ---- modules: the outermost call. A global hook would cost every inner module its fast path, and be traced

    def _hook_modules(self) -> None:
        original = torch.nn.Module.__call__
        plain = original.__code__.co_names == ("_compiled_call_impl", "_call_impl")  # else another's patch, or torch
        inside = False  # as ledger.inside, which is further away: every inner module asks

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside and module._compiled_call_impl is None:  # what `original` does: inner modules have no detour
                return module._call_impl(*args, **kwargs)
            ledger = self.ledger
            if ledger is None or ledger.inside or _get_ident() != ledger.thread or torch.compiler.is_compiling():
                if plain and module._compiled_call_impl is None:
                    return module._call_impl(*args, **kwargs)
                return original(module, *args, **kwargs)
            grad_enabled = _is_grad_enabled()
            shape = shape_at_hand(args or kwargs) if grad_enabled and not ledger.loader_trains else ()
            ledger.saw(_BEGIN_CALL, id(module), getattr(module, "training", True), shape, grad_enabled)
            try:
                ledger.inside, inside = True, plain
                return original(module, *args, **kwargs)
            finally:
                ledger.inside = inside = False
                ledger.saw(_END_CALL)

        self.patch(torch.nn.Module, "__call__", lambda _: call)

    # ---- loaders

    def _hook_loaders(self) -> None:
        iterators = dataloader._BaseDataLoaderIter
        self.patch(dataloader.DataLoader, "__iter__", self._iter_wrapper)
        self.patch(iterators, "__next__", self._next_wrapper)

    def _iter_wrapper(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            ledger = self.mine()
            use = None if ledger is None else ledger.loader_use(loader)
            if ledger is None or use is None:
                found = original(loader)
                with suppress(AttributeError, TypeError):  # whose thread will train, its first step tells
                    # one with persistent workers holds its iterator, which must not hold it in turn
                    found._flatout_loader = weakref.ref(loader) if loader.persistent_workers else lambda: loader
                return found
            ledger.saw(_BEGIN_FETCH, use, _is_grad_enabled())
            with _ToldToWorkers(f"{os.getpid()}-{use.number}"):
                try:
                    found = original(loader)
                finally:
                    ledger.saw(_END_FETCH, use, (), False)
            with suppress(AttributeError):
                found._flatout_use = use
            return found

        return __iter__

    def _next_wrapper(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            ledger = self.ledger
            if ledger is None or _get_ident() != ledger.thread:
                return original(iterator)
            use = getattr(iterator, "_flatout_use", None) or _use_of_iterator(ledger, iterator)
            if use is None:
                return original(iterator)
            ledger.saw(_BEGIN_FETCH, use, _is_grad_enabled())
            shape: tuple[int, ...] = ()
            found = False
            try:
                batch = original(iterator)
                shape, found = shape_at_hand(batch), True
                return batch
            finally:
                ledger.saw(_END_FETCH, use, shape, found)

        return __next__

    # ---- what prepares a batch, in a worker or here

    def _hook_fetchers(self) -> None:
        fetch = _utils.fetch

        def initial(original: Any) -> Any:
            def __init__(fetcher: Any, dataset: Any, auto: Any, collate: Any, drop_last: Any) -> None:
                known = collate in (default_collate, default_convert)  # another one is the script's own code
                original(fetcher, dataset, auto, timed_collate(collate) if known else collate, drop_last)

            return __init__

        self.patch(fetch._BaseDatasetFetcher, "__init__", initial)
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self.patch(kind, "fetch", self._fetch_wrapper)

    def _fetch_wrapper(self, original: Any) -> Any:
        def fetch(fetcher: Any, index: Any) -> Any:
            worker, ledger = get_worker_info(), self.ledger
            if worker is None and (ledger is None or _get_ident() != ledger.thread):
                return original(fetcher, index)
            if len(sys.modules) != self._modules:  # a decoder may have been imported
                self._modules = len(sys.modules)
                patch_decoders(self._decoders)
            batch, times, start = clock_of_thread().measure(original, fetcher, index)
            if worker is not None:
                with suppress(Exception):  # the batch is worth more than a line about it
                    self._note_in_worker(worker.id, times, start)
            elif ledger is not None:
                ledger.saw(_FETCHED_HERE, times, start)
            return batch

        return fetch

    def _note_in_worker(self, worker: int, times: BatchTimes, start: float) -> None:
        if self._diary_pid != os.getpid():
            run = self.ledger.events.run if self.ledger is not None else Path(os.environ["FLATOUT_RECORD"])
            self.ledger = None  # the training process has it
            self._diary_pid, self._diary = os.getpid(), WorkerDiary(run, os.environ[LOADER], worker)
        if self._diary is not None:
            self._diary.note(times, start)

    # ---- the rest

    def _hook_copies(self) -> None:
        def wrapper(original: Any) -> Any:
            def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                ledger = self.ledger
                if ledger is None or ledger.inside or _get_ident() != ledger.thread:
                    return original(tensor, *args, **kwargs)
                since = time.perf_counter()
                moved = original(tensor, *args, **kwargs)
                if moved.device != tensor.device:
                    ledger.saw(ScriptLedger.copied, since)
                return moved

            return to

        for name in ("to", "cuda"):
            self.patch(torch.Tensor, name, wrapper)

    def _hook_collectives(self) -> None:
        distributed = torch.distributed
        if not distributed.is_available():
            return
        for name in COLLECTIVES:
            if hasattr(distributed, name):
                self.patch(distributed, name, lambda original: self._as_part("communication", original))

    def _as_part(self, part: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            ledger = self.mine()
            if ledger is None:
                return original(*args, **kwargs)
            ledger.saw(ScriptLedger.begin_part, part)
            try:
                return original(*args, **kwargs)
            finally:
                ledger.saw(ScriptLedger.end_part, part)

        return call


def _use_of_iterator(ledger: ScriptLedger, iterator: Any) -> Any:
    """Of one that was made before its thread was known to train."""
    loader = getattr(iterator, "_flatout_loader", lambda: None)()
    use = None if loader is None else ledger.loader_use(loader)
    with suppress(AttributeError):
        iterator._flatout_use, iterator._flatout_loader = use, lambda: None
    return use


class _ToldToWorkers:
    """Workers that are started now know whose they are, by fork or by spawn."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        os.environ[LOADER] = self._name

    def __exit__(self, *_: object) -> None:
        os.environ.pop(LOADER, None)
