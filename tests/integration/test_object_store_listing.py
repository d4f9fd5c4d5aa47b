"""Listing: pages that fail, keys that stand for folders, keys that cannot be addressed."""

import pytest

from flatout.errors import AccessDenied, StorageError, StoreUnreachable
from flatout.storage import Entry, open_store
from servers.faults import Faults, Rule
from servers.fixtures import Bucket
from servers.proxy_client import FaultProxy


def listing(*keys: tuple[str, int]) -> str:
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f'<ETag>"0"</ETag><Size>{size}</Size></Contents>'
        for key, size in keys
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"


@pytest.mark.parametrize("kind", ["throttle", "truncate", "disconnect"])
def test_a_page_that_fails_is_asked_for_again(bucket: Bucket, fault_proxy: FaultProxy, kind: str) -> None:
    names = [f"{number:04d}.jpg" for number in range(2500)]
    for name in names:
        bucket.write(name, b"x")
    rules = [
        Rule(kind, path_contains="start-after=", first=2, after_bytes=1000),  # type: ignore[arg-type]
        Rule(kind, path_contains="continuation-token=", first=2, after_bytes=1000),  # type: ignore[arg-type]
    ]
    fault_proxy.set(Faults(rules=rules))
    store = open_store(bucket.url, **bucket.options)
    assert [entry.name for entry in store.entries()] == names
    assert sum(fault_proxy.counts().hits.values()) >= 2


def test_a_store_that_never_lists_is_given_up(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    bucket.write("a.jpg", b"x")
    fault_proxy.rules(Rule("stall"))
    with pytest.raises(StoreUnreachable):
        list(open_store(bucket.url, **bucket.options, deadline_seconds=0.5, stall_seconds=0.1).entries())


def test_folder_keys_are_left_out_and_empty_objects_are_not(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    bucket.write("p/empty.jpg", b"")
    bucket.write("p/both", b"x")
    page = listing(("p/", 0), ("p/both", 1), ("p/both/", 0), ("p/empty.jpg", 0), ("p/train/", 0), ("p/train/a.jpg", 3))
    fault_proxy.rules(Rule("answer", status=200, path_contains="list-type=2", body=page))
    store = open_store(f"{bucket.url}/p", **bucket.options)
    assert list(store.entries()) == [Entry("both", 1), Entry("empty.jpg", 0), Entry("train/a.jpg", 3)]


@pytest.mark.parametrize("key", ["new&#10;line.jpg", "a//b.jpg"])
def test_a_key_that_cannot_be_addressed_is_named_in_one_line(bucket: Bucket, fault_proxy: FaultProxy, key: str) -> None:
    fault_proxy.rules(Rule("answer", status=200, body=listing(("a.jpg", 1), (key, 1))))
    with pytest.raises(StorageError) as error:
        list(open_store(bucket.url, **bucket.options).entries())
    assert repr(key.replace("&#10;", "\n")) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_listing_that_is_denied_says_so(bucket: Bucket) -> None:
    options = {**bucket.options, "access_key_id": "nobody"}
    with pytest.raises(AccessDenied, match="InvalidAccessKeyId"):
        list(open_store(bucket.url, **options).entries())
