"""Jobs that share batches, and services with producers of every kind, for tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from flatout.cache.redis_address import RedisAddress
from flatout.cache.shared_memory import OwnedStore, shared_root
from flatout.config.loading import load_config
from flatout.config.schema import DataConfig
from flatout.data.batch import Batch
from flatout.data.loading.loader import Loader
from flatout.data.loading.pools import InlinePool
from flatout.data.loading.prepare import BatchPlan
from flatout.data.pixels.views import View
from flatout.data.source.dataset import open_dataset
from flatout.errors import BadBundle
from flatout.service.client.opening import open_shared_loader
from flatout.service.client.pool import SharedPool
from flatout.service.coordinator.coordinator import Coordinator
from flatout.service.coordinator.policy import Policy
from flatout.service.producers.producer import Maker
from flatout.service.protocol.messages import Joined, Message, Produce
from flatout.service.transport.paths import ServicePaths
from flatout.service.transport.roots import allowed_roots
from flatout.service.transport.server import SessionRegistry, UnixServer
from flatout.service.transport.service import Certificate, RemoteOptions, Service
from training import wait_until

VIEW = View("tests", crop="pad", size=16, pad=2, flip=0.5, mixup=0.2)
BATCH = 8
ROOMY = Policy(64 << 20, lease_seconds=60.0)


def data_config(path: Path | str, **changes: Any) -> DataConfig:
    return load_config({"data": {"path": str(path), "shared": "auto", "batch_size": BATCH, **changes}}).config.data


def make_plan(path: Path | str, seed: int = 0, batch_size: int = BATCH) -> BatchPlan:
    return BatchPlan(open_dataset(data_config(path)).train, VIEW, seed, batch_size)


@contextmanager
def shared(path: Path | str, workers: int = 0, **changes: Any) -> Iterator[tuple[Loader, SharedPool]]:
    config = data_config(path, **changes)
    plan = BatchPlan(open_dataset(config).train, VIEW, 0, config.batch_size)
    loader, pool = open_shared_loader(plan, config, workers, "cpu")
    try:
        yield loader, pool
    finally:
        loader.close()


class Checker:
    """Compares batches with those of a loader of one's own, byte for byte."""

    def __init__(self, plan: BatchPlan) -> None:
        self._pool = InlinePool(plan)

    def check(self, batch: Batch) -> None:
        expected = self._pool.wait((batch.epoch, batch.index), 60.0)
        assert np.array_equal(batch.images.numpy(), expected.images)
        assert np.array_equal(batch.labels.numpy(), expected.labels)
        assert np.array_equal(batch.sample_ids.numpy(), expected.sample_ids)
        assert batch.mix is not None
        assert expected.mix is not None
        for name, value in vars(expected.mix).items():
            assert np.array_equal(getattr(batch.mix, name), value)


def read_epochs(
    loader: Loader, epochs: range, check: Checker, between: Callable[[int], None] | None = None
) -> list[tuple[int, int]]:
    """Every batch of these epochs, checked; `between` is called with the number of batches so far."""
    seen = []
    for epoch in epochs:
        for batch in loader.epoch(epoch):
            check.check(batch)
            seen.append((batch.epoch, batch.index))
            del batch
            if between is not None:
                between(len(seen))
    return seen


def in_order(plan: BatchPlan, epochs: range) -> list[tuple[int, int]]:
    return [(epoch, index) for epoch in epochs for index in range(plan.batches_per_epoch)]


def daemon() -> psutil.Process:
    """The service that this process has started."""
    return daemons()[-1]


def daemons() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if _runs(each, "flatout.service.transport.daemon")]


def producers(service: psutil.Process) -> list[psutil.Process]:
    return [each for each in service.children() if _runs(each, "flatout.service.producers.producer")]


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and module in process.cmdline()
    except psutil.NoSuchProcess:
        return False


@contextmanager
def service(place: ServicePaths, policy: Policy = ROOMY, trace: Path | None = None) -> Iterator[Service]:
    """A real service with real producers, in a thread of this process."""
    running = Service(place, policy, threads=1, trace=trace)
    thread = threading.Thread(target=running.run, args=(False,))
    thread.start()
    wait_until(place.socket.exists, "the service to listen")
    try:
        yield running
    finally:
        running.sessions.stop()
        thread.join(60)
        assert not thread.is_alive()


class Remote:
    """A service behind gRPC, with batches in Redis."""

    policy = Policy(64 << 20, lease_seconds=60.0, recycles=False, keep_alive_seconds=0.2)

    def __init__(
        self,
        place: ServicePaths,
        redis: RedisAddress,
        port: int,
        policy: Policy | None = None,
        callers: tuple = (),
        roots: tuple[str, ...] = ("/",),
        tls: Certificate | None = None,
    ) -> None:
        remote = RemoteOptions(f"127.0.0.1:{port}", redis, callers, allowed_roots(roots), tls)
        self.service = Service(place, policy or self.policy, threads=1, remote=remote)
        self.thread = threading.Thread(target=self.service.run, args=(False,))
        self.thread.start()

    def stop(self) -> None:
        self.service.sessions.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


Answer = Callable[[Maker, Produce], Message | None]


@contextmanager
def service_with(place: ServicePaths, answer: Answer, policy: Policy = ROOMY) -> Iterator[Coordinator]:
    """A coordinator whose only producer does what a test says; None is no answer at all."""
    coordinator = Coordinator(policy, OwnedStore(shared_root()))
    place.token.write_text("token", encoding="ascii")
    server = UnixServer(SessionRegistry(coordinator, "token"), place.socket)
    maker, stop = Maker(coordinator.store), threading.Event()

    def send(*messages: Message) -> None:
        for message in messages:
            threading.Thread(target=work, args=(message,), daemon=True).start()

    def work(message: Message) -> None:
        assert isinstance(message, Produce)
        maker.learn(message)
        with suppress(BadBundle):  # the buffer is gone: the lease expired, or the test is over
            said = answer(maker, message)
            if said is not None:
                coordinator.say("producer", said)

    def tick() -> None:
        while not stop.wait(0.1):
            coordinator.tick()

    ticker = threading.Thread(target=tick)
    server.start()
    ticker.start()

    def come_back(reason: str) -> None:
        """As a process that is started anew would; not at once, since the coordinator is in the middle of a word."""
        threading.Thread(target=coordinator.say, args=("producer", Joined(slots=2)), daemon=True).start()

    coordinator.attach("producer", send, come_back)
    coordinator.say("producer", Joined(slots=2))
    try:
        yield coordinator
    finally:
        stop.set()
        ticker.join()
        server.close()
        coordinator.close()
