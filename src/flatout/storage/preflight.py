"""Ask a store one question before a run starts, and name what is wrong within ten seconds."""

import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from flatout.errors import ObjectMissing, StorageError, StoreUnreachable, UserError
from flatout.storage.answers import StoreLocation, Trouble, explain
from flatout.storage.client import Address, Option, Timeouts, build_client
from flatout.storage.listing import first_trouble
from flatout.storage.retry import GiveUp, RequestHistory, RequestOutcome, RetryPolicy, next_attempt

_TOTAL_SECONDS = 9.0
_POLICY = RetryPolicy(deadline_seconds=5.0, throttle_seconds=5.0, max_delay_seconds=1.0)
_TIMEOUTS = Timeouts(whole_seconds=4.0, stall_seconds=4.0, connect_seconds=3.0)


def check_store(address: Address, options: Mapping[str, Option], place: StoreLocation) -> None:
    """Raise what is wrong: bucket, region, key, no credentials, endpoint, empty prefix. Returns if none is."""
    # In a thread of its own, because looking up a host name can hang beyond every timeout.
    pool = ThreadPoolExecutor(1, thread_name_prefix="flatout-check")
    try:
        error = pool.submit(_find_error, address, options, place).result(timeout=_TOTAL_SECONDS)
    except TimeoutError:
        error = StoreUnreachable(
            f"{place.url}: no answer from {place.endpoint} within {_TOTAL_SECONDS:.0f} s; "
            "check the endpoint and the network"
        )
    except StorageError as refused:  # no client can be built from these options
        error = refused
    finally:
        pool.shutdown(wait=False)
    if error is not None:
        if not isinstance(error, StoreUnreachable):  # the address or the credentials, which the user gave
            error.exit_code = UserError.exit_code
        raise error


def _find_error(address: Address, options: Mapping[str, Option], place: StoreLocation) -> StorageError | None:
    client = build_client(address, options, _TIMEOUTS)
    started = time.monotonic()
    attempts = 0
    while (trouble := first_trouble(client)) is not None:
        attempts += 1
        elapsed_seconds = time.monotonic() - started
        asked = RequestHistory(attempts, elapsed_seconds, elapsed_seconds, attempts, refreshed=True)
        step = next_attempt(trouble.outcome, asked, _POLICY, random.random)
        if isinstance(step, GiveUp):
            return _explain(trouble, place, elapsed_seconds)
        time.sleep(step.seconds)
    return None


def _explain(trouble: Trouble, place: StoreLocation, elapsed_seconds: float) -> StorageError:
    if trouble.outcome is RequestOutcome.MISSING:
        return ObjectMissing(
            f"{place.url} holds no objects ({trouble.detail}); check the prefix, or upload the dataset first"
        )
    return explain(trouble, place, asked_seconds=elapsed_seconds)
