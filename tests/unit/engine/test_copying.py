"""Batches on their way to a GPU: no memory is used again before the copy from it has ended, whoever prepared it; and a
batch that sets out early changes nothing but when it arrives. The device is that of tests/late_copies.py."""

import mmap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.commands import lr_find
from flatout.config.loading import load_config
from flatout.data.batch import BatchSource
from flatout.data.loading import pinned_memory as host_memory
from flatout.data.loading.loader import Loader, as_batch
from flatout.data.loading.prepare import BatchPlan, prepare
from flatout.data.pixels.views import View
from flatout.engine.copying import Copies, CudaCopyStream, Feed, copies_for, tensors_in
from flatout.engine.devices import Device
from flatout.engine.learner import build_learner
from flatout.engine.loop import EpochRecord, Job, Progress, StepRecord, train
from flatout.engine.range_test import range_test
from flatout.errors import StoreUnreachable
from flatout.service.client.pool import SharedPool
from flatout.service.client.session import JoinSettings
from flatout.service.producers.producer import make_batch
from flatout.service.protocol.messages import Batches, Message, Next, Register, Registered
from flatout.service.protocol.specs import ImagePreparer, batch_bytes, batch_key
from flatout.simulation.simulator import SIMULATED_SPEC
from flatout.tasks.classification.task import Inputs, on_device
from flatout.tasks.translation.task import TextInputs, Translation
from flatout.timeline import Recorder
from flatout.training.setup import prepare_setup
from late_copies import FakePinned, LateStream, is_within
from training import recipe as recipe_of

STREAM = "a" * 64
VIEW = View("tests", crop="pad", size=56, pad=2, flip=0.5, mixup=0.2)
PREFETCH = 2
KINDS = {"inline": 0, "thread": 1, "process": 1, "shared": 0, "text": 1}


class HarshService:
    """The line to a service and its store. What a job has released is overwritten before it hears the next word."""

    address, is_mapped = "memory", True

    def __init__(self, recipe: BatchPlan, buffers: int = 8) -> None:
        self._recipe = recipe
        self._memory = [mmap.mmap(-1, batch_bytes(recipe)) for _ in range(buffers)]
        self.pages = [np.frombuffer(each, np.uint8) for each in self._memory]
        self._free = list(range(buffers))
        self.overwritten = 0

    def ask(self, message: Message, deadline_seconds: float) -> Message:
        assert isinstance(message, Register)
        return Registered(epoch=0, index=0, jobs=1)

    def begin(self, message: Message, deadline_seconds: float) -> Any:
        assert isinstance(message, Next)
        for number in message.released:
            self.pages[number][:] = 0xEE
            self._free.append(number)
            self.overwritten += 1
        taken = [self._free.pop() for _ in range(min(2, len(self._free)))]
        for position, number in enumerate(taken, message.position):
            epoch, index = divmod(position, self._recipe.batches_per_epoch)
            space, name = memoryview(self._memory[number]), batch_key(STREAM, epoch, index)
            make_batch(ImagePreparer(self._recipe, None, 1), epoch, index, space, name, True)
        return lambda: Batches(position=message.position, buffers=taken, denied=None if taken else "no room")

    def read(self, number: int, key: bytes, most_bytes: int) -> memoryview:
        return memoryview(self._memory[number])

    def send(self, message: Message) -> None: ...

    def close(self) -> None: ...


def shared_loader(recipe: BatchPlan, service: HarshService) -> Loader:
    register = Register(
        stream=STREAM,
        spec=SIMULATED_SPEC,
        batches_per_epoch=recipe.batches_per_epoch,
        batch_bytes=batch_bytes(recipe),
        position=0,
    )
    settings = JoinSettings(register, lambda wait: (service, service), lambda epoch, index: None)  # type: ignore[arg-type]
    pool = SharedPool(recipe, settings, lambda: pytest.fail("the service is there"), host_memory.memory_for("cuda"))
    pool.join()
    return Loader(recipe, pool, PREFETCH, 60.0, 0.5)


@dataclass
class Source:
    """Batches of one kind for CUDA, and what each must be."""

    batches: Any
    plan: Any
    pinned: FakePinned
    service: HarshService | None = None

    def to_device(self, batch: Any) -> Inputs | TextInputs:
        if hasattr(batch, "target"):
            return Translation.to_device(None, batch, torch.device("cpu"))  # type: ignore[arg-type]
        return on_device(batch, torch.device("cpu"))

    def expected(self, epoch: int, index: int) -> Inputs | TextInputs:
        if not isinstance(self.plan, BatchPlan):
            return self.to_device(self.plan.prepare(epoch, index))
        space = np.zeros(self.plan.shape(epoch), np.uint8)
        return self.to_device(as_batch(prepare(self.plan, epoch, index, space)))


@contextmanager
def fake_pinned() -> Iterator[FakePinned]:
    with pytest.MonkeyPatch.context() as patch:
        pinned = FakePinned()
        patch.setattr(host_memory, "pinned", pinned)
        yield pinned


@pytest.fixture(scope="module", params=KINDS)
def source(request: pytest.FixtureRequest, shapes: Path, sentences: Path) -> Iterator[Source]:
    kind, workers = request.param, KINDS[request.param]
    setup = prepare_setup(load_config(recipe_of(sentences if kind == "text" else shapes)).config)
    plan, service = setup.plan, None
    if isinstance(plan, BatchPlan):
        plan = replace(plan, view=VIEW)
    with fake_pinned() as pinned:
        if kind == "shared":
            assert isinstance(plan, BatchPlan)
            service = HarshService(plan)
            batches: BatchSource = shared_loader(plan, service)
        else:
            options = {"prefetch": PREFETCH, "cache": "off", "stage": "off"}
            options["worker_kind"] = kind if kind in ("thread", "process") else "auto"
            config = setup.config.data.model_copy(update=options)
            batches = setup.opened.open_source(plan, config, workers, device_kind="cuda")
        with closing(batches):
            yield Source(batches, plan, pinned, service)


def assert_same(found: Any, expected: Any) -> None:
    for one, two in zip(tensors_in(found), tensors_in(expected), strict=True):
        assert torch.equal(one, two)


@settings(max_examples=30, deadline=None)
@given(
    epoch=st.integers(0, 2),
    start=st.integers(0, 3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=4, max_size=14),
)
def test_no_memory_is_used_again_before_the_copy_from_it_has_ended(
    source: Source, epoch: int, start: int, steps: list[tuple[bool, int]]
) -> None:
    """Each step may look ahead, and then so many copies happen; the rest are late."""
    stream = LateStream()
    copies = Copies(source.to_device, stream)
    feed, arrived = Feed(source.batches.epoch(epoch, start), copies), []
    for looks_ahead, happening in steps:
        if (batch := next(feed, None)) is None:
            break
        arrived.append((batch.index, copies.inputs(batch)))
        del batch
        if looks_ahead:
            feed.look_ahead()
        stream.happen(happening)
    stream.finish()
    assert [index for index, _ in arrived] == list(range(start, start + len(arrived)))
    for index, inputs in arrived:
        assert_same(inputs, source.expected(epoch, index))


def test_the_device_copies_from_where_the_batch_was_prepared(source: Source) -> None:
    """No copy to pinned memory is made, of which torch would start threads for every worker. What others share is
    left where it is."""
    for _ in source.batches.epoch(1):
        pass
    assert source.service is None or source.service.overwritten > len(source.service.pages)  # used again and again
    batches = list(islice(source.batches.epoch(0), 4))
    large = [batch.source if hasattr(batch, "source") else batch.images for batch in batches]
    where = source.pinned.allocated if source.service is None else source.service.pages
    assert all(any(is_within(each, memory) for memory in where) for each in large)


def test_no_more_batches_are_kept_than_the_budget_says(source: Source) -> None:
    """However late copies are: those ahead, the one that trains, and one that the device still reads."""
    if source.service is not None or not isinstance(source.plan, BatchPlan):
        pytest.skip("has no buffers of its own, or small ones of many sizes")
    stream = LateStream()
    copies = Copies(source.to_device, stream)
    before = len(source.pinned.allocated)
    feed = Feed(source.batches.epoch(3), copies)
    for batch in feed:
        copies.inputs(batch)
        feed.look_ahead()
    assert len(source.pinned.allocated) - before <= PREFETCH + 2
    stream.finish()


def test_the_host_does_not_wait_for_the_copy_before(source: Source) -> None:
    """That one may take as long as a step."""
    stream = LateStream()
    copies = Copies(source.to_device, stream)
    feed, before = Feed(source.batches.epoch(4), copies), 0
    for batch in feed:
        stream.happen(before - stream.done)
        before = stream.done
        copies.inputs(batch)
        before += stream.waiting
    assert stream.done > 0
    assert stream.host_waits == 0
    stream.finish()


# The loop


class Taken:
    """A source that counts what is taken from it, and fails at a batch where it is told to."""

    def __init__(self, source: BatchSource, broken: int | None = None) -> None:
        self._source, self._broken, self.count = source, broken, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        for batch in self._source.epoch(epoch, start):
            if batch.index == self._broken:
                raise StoreUnreachable("no answer")
            self.count += 1
            yield batch


def job_of(data: Path, progress: Progress, broken: int | None = None, **changes: Any) -> Job:
    config = load_config(recipe_of(data, **changes)).config
    setup = prepare_setup(config)
    torch.manual_seed(0)
    learner = build_learner(setup.task, config, setup.device)
    options = {"device_kind": "cuda"}
    assert setup.opened.val_plan is not None
    train_source = Taken(setup.opened.open_source(setup.plan, config.data, 1, **options), broken)
    val_source = setup.opened.open_source(setup.opened.val_plan, config.data, 1, False, **options)
    return Job(
        config, setup.task, learner, train_source, val_source, Recorder(None), progress,
        save=lambda progress: None, stop_reason=lambda: None, total_steps=100,
    )  # fmt: skip


def with_stream(job: Job) -> LateStream:
    stream = LateStream(computes_at_once=True)
    stream.current = lambda: job.recorder.current
    job.copies = Copies(lambda batch: job.task.to_device(batch, torch.device("cpu")), stream)  # type: ignore[misc]
    return stream


def facts(record: StepRecord | EpochRecord) -> tuple[Any, ...]:
    if isinstance(record, EpochRecord):
        return record.epoch, record.samples, record.train_loss, record.metrics
    return record.step, record.batch_index, record.samples_digest, record.loss, record.learning_rate


def trained(job: Job) -> tuple[list[tuple[Any, ...]], list[torch.Tensor]]:
    assert job.val_source is not None
    torch.manual_seed(1)  # of dropout
    with closing(job.source), closing(job.val_source):
        records = [facts(record) for record in train(job)]
    return records, [parameter.detach().clone() for parameter in job.learner.model.parameters()]


def assert_equal_runs(one: Any, two: Any) -> None:
    assert one[0] == two[0]
    assert all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("log_every", [1, 3])
def test_a_run_with_copies_under_way_is_the_same_to_the_bit(samples: Path, log_every: int) -> None:
    changes = {"train__log_every": log_every, "train__accumulate": 2, "train__epochs": 2}
    with fake_pinned():
        plain, late = job_of(samples, Progress(), **changes), job_of(samples, Progress(), **changes)
        stream = with_stream(late)
        assert_equal_runs(trained(late), trained(plain))
    assert set(stream.queued_in) == {"copy", "validation"}  # the ledger knows whose time it was
    assert late.source.count == plain.source.count == late.progress.step  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_one_thread")
def test_what_is_counted_is_what_was_trained(shapes: Path) -> None:
    """A run that stops goes on with the batch that had set out, and ends as one that did not stop."""
    changes = {"train__log_every": 1, "train__epochs": 1}
    with fake_pinned():
        whole = trained(job_of(shapes, Progress(), **changes))
        first = job_of(shapes, Progress(), **changes)
        with_stream(first)
        first.stop_reason = lambda: "enough" if first.progress.step == 5 else None
        records, _ = trained(first)
        assert (first.progress.batch_index, first.source.count) == (5, 6)  # type: ignore[attr-defined]
        second = job_of(shapes, first.progress, **changes)
        second.learner, second.gradients_verified = first.learner, True
        with_stream(second)
        more, weights = trained(second)
    assert_equal_runs((records + more, weights), whole)


@pytest.mark.usefixtures("_one_thread")
def test_no_batch_is_taken_that_will_not_be_trained(shapes: Path) -> None:
    with fake_pinned():
        job = job_of(shapes, Progress(), train__log_every=1, train__max_steps=5)
        with_stream(job)
        trained(job)
    assert job.source.count == job.progress.step == 5  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_one_thread")
def test_a_batch_that_fails_early_fails_in_its_turn(shapes: Path) -> None:
    records = []
    with fake_pinned():
        job = job_of(shapes, Progress(), broken=4, train__log_every=1)
        with_stream(job)
        assert job.val_source is not None
        with closing(job.source), closing(job.val_source), pytest.raises(StoreUnreachable):
            records.extend(train(job))
    assert [record.step for record in records] == [1, 2, 3, 4]


@pytest.mark.usefixtures("_one_thread")
def test_waits_belong_to_the_step_in_which_they_were(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.perf_counter
    with fake_pinned():
        job = job_of(shapes, Progress(), train__log_every=1, train__max_steps=6)
        monkeypatch.setattr(time, "perf_counter", lambda: clock() + 1000 * job.source.count)  # type: ignore[attr-defined]
        with_stream(job)
        assert job.val_source is not None
        with closing(job.source), closing(job.val_source):
            records = [record for record in train(job) if isinstance(record, StepRecord)]
    assert all(record.data_wait_seconds <= record.step_seconds for record in records)
    assert [round(record.data_wait_seconds / 1000) for record in records] == [2, 1, 1, 1, 1, 0]
    assert round(job.recorder.totals()["data_wait"] / 1000) == 6


def test_where_nothing_overlaps_no_batch_sets_out_early(shapes: Path) -> None:
    setup = prepare_setup(load_config(recipe_of(shapes)).config)
    for kind in ("cpu", "emulated", "mps"):
        device = Device(kind, torch.device("mps" if kind == "mps" else "cpu"), "")
        copies = copies_for(setup.task, device)
        feed = Feed(iter([pytest.fail]), copies)  # type: ignore[list-item]
        assert (copies.overlap, feed.look_ahead()) == (False, 0.0)
        assert next(feed) is pytest.fail


@pytest.mark.usefixtures("_one_thread")
def test_a_range_test_overlaps_too(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = LateStream(computes_at_once=True)

    def points(late: bool) -> list[Any]:
        job = job_of(shapes, Progress())
        copies = Copies(lambda batch: job.task.to_device(batch, torch.device("cpu")), stream if late else None)
        monkeypatch.setattr("flatout.engine.range_test.copies_for", lambda task, device: copies)
        assert job.val_source is not None
        with closing(job.source), closing(job.val_source):
            return list(range_test(job.task, job.learner, job.source, job.config, 1e-4, 1e-2, 5))

    with fake_pinned():
        assert points(late=True) == points(late=False)
    assert stream.done > 0


def test_lr_find_says_for_which_device_batches_are(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def opening(*args: Any, **options: Any) -> Any:
        asked.append(options.get("device_kind"))
        raise StoreUnreachable("far enough")

    monkeypatch.setattr("flatout.tasks.classification.opening.open_loader", opening)
    with pytest.raises(StoreUnreachable):
        lr_find.find_learning_rate(recipe_of(shapes, device="emulated"))
    assert asked == ["emulated"]


class Cuda:
    """torch.cuda as far as copies need it; `calls` has what was asked of it, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.current = "computing"
        patch.setattr(torch.cuda, "Stream", lambda device: "copying")
        patch.setattr(torch.cuda, "Event", lambda: self)
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "current_stream", lambda device: self)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, by: self.calls.append(("keep for", by.current)))

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.current = stream
        yield
        self.current = "computing"

    def record(self, stream: str) -> None:
        self.calls.append(("event", stream))

    def wait_event(self, event: Any) -> None:
        self.calls.append((f"{self.current} waits", None))


def test_the_stream_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied on a stream of its own, then the event; computing waits for that, and the memory is kept for computing."""
    cuda = Cuda(monkeypatch)
    stream = CudaCopyStream(torch.device("cuda"))

    def copy() -> dict[str, Any]:
        cuda.calls.append(("copy", cuda.current))
        return {"inputs": Inputs(torch.zeros(1), torch.zeros(1)), "more": [(torch.zeros(1), "text")]}

    inputs, event = stream.queue(copy)
    assert cuda.calls == [("copy", "copying"), ("event", "copying")]
    stream.join(event, inputs)
    assert cuda.calls[2:] == [("computing waits", None), *[("keep for", "computing")] * 3]
