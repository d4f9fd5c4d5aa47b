"""One store used by many threads, and by processes that were forked or spawned."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from flatout.errors import ObjectMissing
from flatout.storage import Range, open_store
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


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("used_before", [True, False])
def test_children_read_with_a_store_of_their_parent(full: Bucket, method: str, used_before: bool) -> None:
    store = open_store(full.url, **full.options)
    if used_before:
        assert_right(store.read_many(WANTED))
    with multiprocessing.get_context(method).Pool(2) as pool:
        for _ in range(2):
            answers = [pool.apply_async(store.read_many, (WANTED,)) for _ in range(4)]
            for answer in answers:
                assert_right(answer.get(timeout=60))
    assert_right(store.read_many(WANTED))


def _read_in_a_grandchild(pickled: bytes) -> object:
    store = pickle.loads(pickled)
    assert_right(store.read_many(WANTED))
    reader, writer = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=lambda: writer.send(store.read_many(WANTED)))
    child.start()
    answers = reader.recv() if reader.poll(60) else "no answer"
    child.join(10)
    return answers


def test_a_fork_of_a_fork(full: Bucket) -> None:
    store = open_store(full.url, **full.options)
    assert_right(store.read_many(WANTED))
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    pickled = pickle.dumps(store)
    child = context.Process(target=lambda: writer.send(_read_in_a_grandchild(pickled)))  # not daemonic: it has a child
    child.start()
    assert_right(reader.recv() if reader.poll(120) else "no answer")
    child.join(10)
    assert child.exitcode == 0


def test_threads_share_one_connection(full: Bucket) -> None:
    store = open_store(full.url, **full.options)
    with ThreadPoolExecutor(8) as pool:
        for answers in pool.map(store.read_many, [WANTED] * 40):
            assert_right(answers)
    assert len(store._connections) == 1  # type: ignore[attr-defined]
