"""Shared batches under kills, hangs and lies: every batch is still the one a loader of one's own would make."""

import itertools
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flatout.cache.shared_memory import private_folder
from flatout.errors import DataError, ServiceUnavailable
from flatout.service.client import requests
from flatout.service.client.pool import SharedPool
from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK, SMALL_BATCH_FACTOR, Policy
from flatout.service.producers.producer import Maker
from flatout.service.protocol.messages import Ask, Done, Failed, Hello, Message, Produce, Refused
from flatout.service.protocol.wire import Wire
from flatout.service.transport import service as service_module
from flatout.service.transport.daemon import connect
from flatout.service.transport.paths import ServicePaths, service_paths
from sharing import Checker, daemons, in_order, make_plan, producers, read_epochs, service, service_with, shared
from sharing import daemon as started_daemon
from training import forked, make_dataset, wait_until
from unit.cache.small_disk import SmallDisk, small_disk  # noqa: F401


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePaths:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return service_paths()


def status(place: ServicePaths) -> dict:
    wire, _ = connect(place, "viewer", "test", 60.0)
    try:
        return wire.ask(Ask(), 60.0).values
    finally:
        wire.close()


def let_rejoin(pool: SharedPool, place: ServicePaths) -> None:
    """With the next batch: the first try starts a service, and the second one finds it running."""

    def answers() -> bool:
        with suppress(ServiceUnavailable):
            connect(place, "viewer", "test")[0].close()
            return True
        return False

    if len(daemons()) > 0:
        wait_until(answers, "the service that the job has started")
    pool._session.rejoin_at = 0.0


def test_the_last_job_to_leave_ends_the_service_and_leaves_nothing(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    with shared(shapes) as (first, one), shared(shapes) as (second, two):
        running = started_daemon()
        seen = read_epochs(first, range(2), Checker(plan))
        assert seen == read_epochs(second, range(2), Checker(plan)) == in_order(plan, range(2))
        counts = status(place)["counts"]
        store = Path(status(place)["store"])
        ahead = SMALL_BATCH_FACTOR * Policy(0).window + MAX_BATCHES_PER_ASK
        assert counts["made"] <= len(seen) + ahead, "made once for both, but for what the second came too late for"
        assert one.stats.hits == two.stats.hits == len(seen)
    wait_until(lambda: not place.socket.exists(), "the service to end")
    running.wait(60)
    assert not store.exists()


def test_coordinator_killed(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)

    def between(count: int) -> None:
        if count == 5:
            started_daemon().send_signal(signal.SIGKILL)
        if count >= 25 and not pool.stats.rejoined:
            let_rejoin(pool, place)

    with shared(shapes) as (loader, pool):
        assert read_epochs(loader, range(5), Checker(plan), between) == in_order(plan, range(5))
        assert pool.stats.outages >= 1
        assert pool.stats.alone >= 1
        assert pool.stats.rejoined == 1
        assert pool.stats.hits > 5


def test_a_job_with_time_between_its_batches(shapes: Path, place: ServicePaths) -> None:
    """A thread asks and opens for it: through a kill, a start in the middle of an epoch and the end, all the same."""
    plan = make_plan(shapes)
    helped = 0

    def helpers() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "flatout-shared"]

    def between(count: int) -> None:
        nonlocal helped
        helped += bool(helpers())
        time.sleep(0.005)
        if count == 30:
            started_daemon().send_signal(signal.SIGKILL)
        if count >= 60 and not pool.stats.rejoined:
            let_rejoin(pool, place)

    with shared(shapes) as (loader, pool):
        assert read_epochs(loader, range(5), Checker(plan), between) == in_order(plan, range(5))
        assert helped
        assert pool.stats.outages == pool.stats.rejoined == 1
        check = Checker(plan)
        for start in (3, 11, 1):
            for batch, _ in zip(loader.epoch(7, start), range(3), strict=False):
                time.sleep(0.005)
                check.check(batch)
    assert not helpers(), "a thread that lives on may take the process down at its end"


def test_batches_of_a_dead_service_are_not_given_back_to_the_next(shapes: Path, place: ServicePaths) -> None:
    """Both number their buffers from 1: what was read from the first must not be released at the second."""
    plan = make_plan(shapes)
    check = Checker(plan)
    with service(place):
        with_first = shared(shapes)
        loader, pool = with_first.__enter__()
        batches = itertools.chain.from_iterable(map(loader.epoch, range(3)))
        kept = [next(batches) for _ in range(6)]
    while not pool.stats.outages:  # what it holds is used up first
        check.check(next(batches))
    assert pool.stats.outages == 1
    with service(place):
        pool._session.rejoin_at = 0.0
        now = [next(batches) for _ in range(3)]
        assert pool.stats.rejoined == 1
        for batch in kept:
            check.check(batch)
        released = list(pool._requests.opener.released)
        del kept, batch
        assert list(pool._requests.opener.released) == released
        for batch in [*now, *batches]:
            check.check(batch)
        with_first.__exit__(None, None, None)


def test_producer_killed_again_and_again(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)

    def between(count: int) -> None:
        if count in (3, 20, 37):
            for process in wait_until(lambda: producers(started_daemon()), "a producer"):
                process.send_signal(signal.SIGKILL)

    with shared(shapes) as (loader, pool):
        assert read_epochs(loader, range(3), Checker(plan), between) == in_order(plan, range(3))
        assert pool.stats.hits
        assert pool.stats.most_asks_per_batch <= 10


def test_producer_that_hangs_is_replaced(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    with service(place, Policy(64 << 20, lease_seconds=1.0)) as running, shared(shapes) as (loader, pool):
        pids = wait_until(lambda: running.producers.pids(), "a producer")

        def between(count: int) -> None:
            if count == 4:
                os.kill(pids[0], signal.SIGSTOP)

        assert read_epochs(loader, range(2), Checker(plan), between) == in_order(plan, range(2))
        assert running.coordinator.status()["counts"]["expired"] >= 1
        assert pids[0] not in running.producers.pids()
        assert pool.stats.most_asks_per_batch <= 10


def _garbage(maker: Maker, order: Produce) -> Message:
    space = maker._store.space(order.buffer, order.bytes)
    space[:] = os.urandom(len(space))
    return Done(lease=order.lease, bytes=100, seconds=0.1)


def _another_batch(maker: Maker, order: Produce) -> Message:
    return maker.make(order.model_copy(update={"index": (order.index + 1) % 20}))


def _torn(maker: Maker, order: Produce) -> Message:
    done = maker.make(order)
    maker._store.space(order.buffer, order.bytes)[3000] ^= 1
    return done


LIES = {
    "says ready without writing": lambda maker, order: Done(lease=order.lease, bytes=100, seconds=0.1),
    "garbage": _garbage,
    "another batch": _another_batch,
    "a flipped bit": _torn,
    "fails": lambda maker, order: Failed(lease=order.lease, reason="no"),
    "somebody else's lease": lambda maker, order: Done(lease=order.lease + 1, bytes=1, seconds=0.1),
}


@pytest.mark.parametrize("lie", LIES)
def test_producer_that_lies(lie: str, shapes: Path, place: ServicePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third order is answered truly, so that the job goes on asking."""
    plan = make_plan(shapes)
    orders = 0

    def answer(maker: Maker, order: Produce) -> Message:
        nonlocal orders
        orders += 1
        return maker.make(order) if orders % 3 == 0 else LIES[lie](maker, order)

    with (
        service_with(place, answer, Policy(64 << 20, lease_seconds=0.2)) as coordinator,
        shared(shapes) as (loader, pool),
    ):
        assert read_epochs(loader, range(2), Checker(plan)) == in_order(plan, range(2))
        counts = coordinator.status()["counts"]
        assert counts["failures"] + counts["expired"] > 0
        assert pool.stats.spoilt == 0, "never even shown to a job"
        assert pool.stats.most_asks_per_batch <= 10


def test_producer_that_never_answers(shapes: Path, place: ServicePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "next_action", lambda asked, answer: client_action(asked, answer, 0.3))
    plan = make_plan(shapes)
    with service_with(place, lambda maker, order: None) as coordinator, shared(shapes) as (loader, pool):
        assert read_epochs(loader, range(2), Checker(plan)) == in_order(plan, range(2))
        assert pool.stats.hits == 0
        assert pool.stats.outages == 1, "not asked for every batch, but left alone for a while"
        assert coordinator.status()["counts"]["asks"] < 20


client_action = requests.next_action


def test_job_killed_and_the_other_goes_on(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    with shared(shapes) as (loader, pool), forked(_read_for_ever, str(shapes), str(place.folder.parent)) as other:
        wait_until(lambda: len(status(place)["jobs"]) == 2, "the second job")

        def between(count: int) -> None:
            if count == 10:
                os.kill(other.pid, signal.SIGKILL)

        assert read_epochs(loader, range(3), Checker(plan), between) == in_order(plan, range(3))
        wait_until(lambda: len(status(place)["jobs"]) == 1, "the killed job to be noticed")
        assert pool.stats.alone == 0


def _read_for_ever(path: str, runtime: str) -> None:
    os.environ["XDG_RUNTIME_DIR"] = runtime
    with shared(path) as (loader, _):
        for epoch in range(10**6):
            for _ in loader.epoch(epoch):
                pass


def test_a_slow_job_does_not_hold_up_another(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    small = Policy(12 * 10_000, lease_seconds=60.0)  # a dozen batches
    with service(place, small), shared(shapes) as (slow, _), shared(shapes) as (fast, _):
        lagging = slow.epoch(0)
        kept = [next(lagging), next(lagging)]
        assert read_epochs(fast, range(4), Checker(plan)) == in_order(plan, range(4))
        for batch in [*kept, *lagging]:
            Checker(plan).check(batch)


def test_dev_shm_too_small(
    shapes: Path,
    place: ServicePaths,
    small_disk: SmallDisk,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The policy believes in 64 MB; the file system has 64 kB."""
    root = private_folder(small_disk("64k") / "flatout")
    monkeypatch.setattr(service_module, "shared_root", lambda: root)
    plan = make_plan(shapes)
    with service(place) as running, shared(shapes) as (loader, _):
        assert read_epochs(loader, range(2), Checker(plan)) == in_order(plan, range(2))
        assert running.coordinator.state.tables.policy.capacity_bytes < 64 << 10


def test_one_batch_does_not_fit(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    with service(place, Policy(1000)), shared(shapes) as (loader, _):
        assert "set data.shared_bytes to at least" in loader.notes[0]
        assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))


def test_wrong_token(shapes: Path, place: ServicePaths) -> None:
    with service(place):
        place.token.write_text("not this", encoding="ascii")
        with pytest.raises(ServiceUnavailable, match="wrong token"):
            connect(place, "job", "x", 60.0)


def test_nothing_is_said_before_hello(place: ServicePaths) -> None:
    import socket

    with service(place), socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(place.socket))
        wire = Wire(raw)
        answer = wire.ask(Ask(what="clear"), 60.0)
        assert isinstance(answer, Refused)
        with pytest.raises(ServiceUnavailable):
            wire.ask(Hello(token="", role="job", name="x"), 60.0)


def test_dataset_that_changed_stops_the_job(tmp_path: Path, place: ServicePaths) -> None:
    data = make_dataset(tmp_path / "data")
    with service(place), shared(data) as (loader, _):
        next(iter(sorted((data / "train").rglob("*.png")) or sorted((data / "train").rglob("*.*")))).unlink()
        with pytest.raises(DataError, match="do not have the same data"):
            read_epochs(loader, range(1), Checker(make_plan(data)))


def test_a_forked_job_opens_a_connection_of_its_own(shapes: Path, place: ServicePaths) -> None:
    plan = make_plan(shapes)
    with shared(shapes) as (loader, pool):
        check = Checker(plan)
        first = loader.epoch(0)
        check.check(next(first))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert read_epochs(loader, range(1, 2), check) == in_order(plan, range(1, 2))
                assert pool.stats.hits >= plan.batches_per_epoch
                code = 0
            finally:
                os._exit(code)
        for batch in first:
            check.check(batch)
        assert os.waitpid(child, 0)[1] == 0


def test_stale_files_of_a_dead_service_are_removed(shapes: Path, place: ServicePaths) -> None:
    with shared(shapes) as (loader, _):
        next(loader.epoch(0))
        store = Path(status(place)["store"])
        running = started_daemon()
        running.send_signal(signal.SIGKILL)
        running.wait(60)
        assert store.exists()
        assert place.socket.exists()
    with shared(shapes) as (loader, _):
        next(loader.epoch(0))
        assert not store.exists()
        assert Path(status(place)["store"]).exists()
