import pytest

from flatout.storage.counters import CounterBook, StoreCounters


def test_nothing_measured_is_not_a_zero() -> None:
    assert StoreCounters().seconds_at(0.5) is None


@pytest.mark.parametrize("seconds", [0.0005, 0.03, 1.0, 59.0])
def test_quantiles_are_within_ten_per_cent(seconds: float) -> None:
    book = CounterBook()
    for _ in range(99):
        book.add_request(seconds, 10, throttled=False)
    book.add_request(300.0, 0, throttled=True)
    counters = book.snapshot()
    assert counters.seconds_at(0.5) == pytest.approx(seconds, rel=0.1)
    assert counters.seconds_at(0.99) == pytest.approx(seconds, rel=0.1)
    assert counters.seconds_at(1.0) == pytest.approx(300.0, rel=0.1)


def test_times_beyond_the_scale_are_kept() -> None:
    book = CounterBook()
    book.add_request(0.0, 0, throttled=False)
    book.add_request(1e6, 0, throttled=False)
    assert sum(book.snapshot().seconds_histogram) == 2


def test_counters_of_processes_add_up() -> None:
    books = [CounterBook(), CounterBook()]
    for book in books:
        book.add_request(0.01, 100, throttled=True)
        book.add_retry()
        book.add_failures(2)
    total = books[0].snapshot() + books[1].snapshot()
    assert (total.requests, total.retries, total.throttles, total.failures, total.bytes) == (2, 2, 2, 4, 200)
    assert total.request_seconds == pytest.approx(0.02)
    assert sum(total.seconds_histogram) == 2
