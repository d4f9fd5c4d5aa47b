"""The preflight: each mistake has its own line."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.errors import AccessDenied, ConfigError, ObjectMissing, StorageError, StoreUnreachable
from flatout.storage import object_store, open_store
from flatout.storage.client import Timeouts
from flatout.storage.object_store import ObjectStore
from servers.faults import Rule
from servers.fixtures import DEAD_ENDPOINT, Bucket
from servers.proxy_client import FaultProxy
from servers.s3 import SECRET_KEY
from training import command, write_recipe


@pytest.fixture
def full(bucket: Bucket) -> Bucket:
    bucket.write("train/a.jpg", b"x")
    return bucket


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        object_store, "_CHECK_TIMEOUTS", Timeouts(whole_seconds=0.3, stall_seconds=0.3, connect_seconds=0.3)
    )
    monkeypatch.setattr(object_store, "_CHECK_SECONDS", 2.0)
    monkeypatch.setattr(
        object_store, "_CHECK_POLICY", object_store.RetryPolicy(deadline_seconds=0.5, throttle_seconds=0.5)
    )


def check(url: str, options: dict[str, str]) -> str:
    """The message, after making sure that it is one line without a secret."""
    store = open_store(url, **options)
    assert isinstance(store, ObjectStore)
    with pytest.raises(StorageError) as error:
        store.check()
    message = str(error.value)
    assert "\n" not in message
    assert SECRET_KEY not in message
    assert error.value.__cause__ is None
    assert error.value.exit_code == (1 if isinstance(error.value, StoreUnreachable) else 2)
    return f"{type(error.value).__name__}: {message}"


def test_a_good_store_passes(full: Bucket) -> None:
    for prefix in ("", "/train", "/train/"):
        store = open_store(full.url + prefix, **full.options)
        assert isinstance(store, ObjectStore)
        store.check()


def test_wrong_bucket(full: Bucket) -> None:
    message = check("s3://no-such-bucket/train", full.options)
    assert message.startswith(ObjectMissing.__name__)
    assert "bucket s3://no-such-bucket does not exist" in message


def test_empty_prefix(full: Bucket) -> None:
    assert "holds no objects" in check(full.url + "/val", full.options)


def test_a_prefix_is_whole_folder_names(full: Bucket) -> None:
    assert "holds no objects" in check(full.url + "/tra", full.options)


def test_wrong_secret(full: Bucket) -> None:
    message = check(full.url, {**full.options, "secret_access_key": "wrong"})
    assert message.startswith(AccessDenied.__name__)
    assert "SignatureDoesNotMatch" in message


def test_wrong_key_id(full: Bucket) -> None:
    assert "InvalidAccessKeyId" in check(full.url, {**full.options, "access_key_id": "wrong"})


@pytest.mark.parametrize(
    "answer",
    [
        (301, "<Error><Code>PermanentRedirect</Code><Endpoint>b.s3.eu-west-1.amazonaws.com</Endpoint></Error>"),
        (
            400,
            "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting "
            "'eu-west-1'</Message><Region>eu-west-1</Region></Error>",
        ),
    ],
)
def test_wrong_region(full: Bucket, fault_proxy: FaultProxy, answer: tuple[int, str]) -> None:
    fault_proxy.rules(Rule("answer", status=answer[0], body=answer[1]))
    message = check(full.url, full.options)
    assert "wrong region" in message
    assert "AWS_REGION" in message
    assert answer[0] == 301 or "the bucket is in eu-west-1" in message


def test_no_credentials(full: Bucket) -> None:
    message = check(full.url, {"endpoint": full.options["endpoint"], "region": "us-east-1"})
    assert message.startswith(AccessDenied.__name__)
    assert "no credentials found" in message


def test_training_without_credentials_is_the_users_mistake(work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", work, data__path="s3://bucket/train")
    environment = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    finished = command("train", config, cwd=work, environment=environment)
    assert "no credentials found" in finished.error_line
    assert finished.code == 2
    assert not (work / "runs").exists()


def test_no_credentials_and_a_metadata_service_that_hangs(
    full: Bucket, silent_endpoint: str, short_timeouts: None
) -> None:
    options = {"endpoint": full.options["endpoint"], "region": "us-east-1", "metadata_endpoint": silent_endpoint}
    assert "no credentials found" in check(full.url, options)


def test_half_a_key(full: Bucket) -> None:
    options = {key: value for key, value in full.options.items() if key != "secret_access_key"}
    assert "SecretAccessKey is missing" in check(full.url, options)


def test_endpoint_refused(full: Bucket, short_timeouts: None) -> None:
    message = check(full.url, {**full.options, "endpoint": DEAD_ENDPOINT})
    assert message.startswith(StoreUnreachable.__name__)
    assert f"{DEAD_ENDPOINT} within" in message
    assert "connection refused" in message


def test_endpoint_silent(full: Bucket, silent_endpoint: str, short_timeouts: None) -> None:
    assert "timed out" in check(full.url, {**full.options, "endpoint": silent_endpoint})


def test_waits_end_within_ten_seconds() -> None:
    longest = object_store._CHECK_POLICY.deadline_seconds + object_store._CHECK_TIMEOUTS.whole_seconds
    assert longest <= object_store._CHECK_SECONDS < 10


def test_a_short_slow_down_does_not_fail_the_check(full: Bucket, fault_proxy: FaultProxy) -> None:
    fault_proxy.rules(Rule("throttle", first=2))
    store = open_store(full.url, **full.options)
    assert isinstance(store, ObjectStore)
    store.check()


def test_plain_http_leaves_the_machine_only_on_demand(full: Bucket) -> None:
    message = check(full.url, {**full.options, "endpoint": "http://192.0.2.1"})  # refused before any packet is sent
    assert "plain http" in message


def test_an_unknown_option_is_named(full: Bucket) -> None:
    store = open_store(full.url, **full.options, regoin="x")
    with pytest.raises(ConfigError, match="regoin"):
        list(store.entries())


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/train", {"base_url": "", "skip_signature": True}),
        ("az://container/train", {"endpoint": "", "account_name": "account", "skip_signature": True}),
    ],
)
def test_other_clouds_are_asked_at_their_endpoint(fault_proxy: FaultProxy, url: str, options: dict[str, str]) -> None:
    fault_proxy.rules(Rule("answer", status=404, body="<Error><Code>NoSuchBucket</Code></Error>"))
    message = check(url, {key: value or fault_proxy.endpoint for key, value in options.items()})
    assert "does not exist" in message
    assert fault_proxy.counts().requests == 1
