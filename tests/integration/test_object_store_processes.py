"""One store used by many threads, and by processes that were forked or spawned."""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from flatout.errors import ObjectMissing, StorageError
from flatout.storage import Range, Store, open_store
from servers.fixtures import Bucket

DATA = b"some bytes" * 100
WANTED = [Range("a.jpg"), Range("b.jpg", 10, 20), Range("none.jpg")]


@pytest.fixture
def full(bucket: Bucket) -> Bucket:
    bucket.write("a.jpg", DATA)
    bucket.write("b.jpg", DATA)
    return bucket


def assert_right(answers: object) -> None:
    assert isinstance(answers, list)
    assert answers[:2] == [DATA, DATA[10:30]]
    assert isinstance(answers[2], ObjectMissing)


@pytest.mark.parametrize("used_before", [True, False])
def test_spawned_children_read_with_a_store_of_their_parent(full: Bucket, used_before: bool) -> None:
    store = open_store(full.url, **full.options)
    if used_before:
        assert_right(store.read_many(WANTED))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for _ in range(2):
            answers = [pool.apply_async(store.read_many, (WANTED,)) for _ in range(4)]
            for answer in answers:
                assert_right(answer.get(timeout=60))
    assert_right(store.read_many(WANTED))


def _read_in_a_fork(store: Store) -> object:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def read() -> None:
        try:
            writer.send(store.read_many(WANTED))
        except StorageError as error:
            writer.send(str(error))

    child = context.Process(target=read)
    child.start()
    answers = reader.recv() if reader.poll(60) else "no answer"
    child.join(10)
    return answers


def test_a_fork_of_a_process_that_read_is_refused_in_one_line(full: Bucket) -> None:
    store = open_store(full.url, **full.options)
    assert_right(store.read_many(WANTED))
    said = _read_in_a_fork(store)
    assert isinstance(said, str)
    assert f"forked from one that used them ({os.getpid()})" in said
    assert "spawn or forkserver" in said
    assert_right(store.read_many(WANTED))


def _fork_before_the_first_read(pickled: bytes) -> object:
    return _read_in_a_fork(pickle.loads(pickled))


def test_a_fork_before_the_first_read_reads(full: Bucket) -> None:
    store = open_store(full.url, **full.options)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert_right(pool.submit(_fork_before_the_first_read, pickle.dumps(store)).result(120))


def test_threads_share_one_connection(full: Bucket) -> None:
    store = open_store(full.url, **full.options)
    with ThreadPoolExecutor(8) as pool:
        for answers in pool.map(store.read_many, [WANTED] * 40):
            assert_right(answers)
    assert len(store._connections) == 1  # type: ignore[attr-defined]
