"""Shared batches beyond one machine: a real Redis, gRPC, Ray, S3, and the Lambda runtime."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flatout.cache.bundle import read_bundle
from flatout.cache.redis_store import RedisStore
from flatout.cache.sealing import entry_keys
from flatout.errors import BadBundle, ConfigError
from flatout.service.coordinator.policy import MAX_BATCHES_PER_ASK, SMALL_BATCH_FACTOR, Policy
from flatout.service.producers.functions import RayCaller
from flatout.service.producers.lambda_caller import LambdaCaller
from flatout.service.producers.lambda_handler import handler, make_event, read_answer
from flatout.service.protocol.specs import batch_bytes, batch_key, describe, stream_name
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.transport.paths import ServicePaths, service_paths
from flatout.service.transport.stores import StoreAccess, open_batch_store
from servers.redis_servers import Redis, free_port
from sharing import Checker, Remote, data_config, in_order, make_plan, read_epochs, shared
from training import wait_until

VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePaths:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return service_paths()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server")
    server = Redis(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def remote(place: ServicePaths, redis: Redis) -> Iterator[tuple[Remote, dict[str, str]]]:
    port = free_port()
    running = Remote(place, redis.address, port)
    yield running, {"shared": f"grpc://127.0.0.1:{port}", "shared_token": str(place.token)}
    running.stop()


def test_two_jobs_through_grpc_and_redis(shapes: Path, remote: tuple[Remote, dict[str, str]]) -> None:
    plan = make_plan(shapes)
    with shared(shapes, **remote[1]) as (first, one), shared(shapes, **remote[1]) as (second, two):
        assert read_epochs(first, range(2), Checker(plan)) == in_order(plan, range(2))
        assert read_epochs(second, range(2), Checker(plan)) == in_order(plan, range(2))
        assert one.stats.hits == two.stats.hits == 2 * plan.batches_per_epoch
        ahead = SMALL_BATCH_FACTOR * Policy(0).window + MAX_BATCHES_PER_ASK
        assert remote[0].service.coordinator.status()["counts"]["made"] <= 2 * plan.batches_per_epoch + ahead


def test_redis_killed_flushed_and_full(shapes: Path, redis: Redis, remote: tuple[Remote, dict[str, str]]) -> None:
    plan = make_plan(shapes)

    def between(count: int) -> None:
        if count == 3:
            redis.command("FLUSHALL")
        elif count == 23:
            redis.kill()
        elif count == 43:
            redis.start("--maxmemory", "1mb", "--maxmemory-policy", "noeviction")  # less than it takes to be empty

    with shared(shapes, **remote[1]) as (loader, pool):
        assert read_epochs(loader, range(4), Checker(plan), between) == in_order(plan, range(4))
        assert pool.stats.hits
        assert pool.stats.spoilt + pool.stats.local + pool.stats.alone > 0


def test_network_cut(shapes: Path, place: ServicePaths, redis: Redis) -> None:
    """The service is out of reach for a while, and comes back under the same address with another token file."""
    plan, port = make_plan(shapes), free_port()
    running = [Remote(place, redis.address, port)]
    access = {"shared": f"grpc://127.0.0.1:{port}", "shared_token": str(place.token)}

    def between(count: int) -> None:
        if count == 10:
            running.pop().stop()
        if count == 30:
            running.append(Remote(place, redis.address, port))
        if count >= 30 and not pool.stats.rejoined:
            pool._session.rejoin_at = 0.0

    with shared(shapes, **access) as (loader, pool):
        assert read_epochs(loader, range(4), Checker(plan), between) == in_order(plan, range(4))
        assert pool.stats.alone >= 1
        assert pool.stats.rejoined == 1
    running.pop().stop()


def test_wrong_token_stops_the_job(shapes: Path, tmp_path: Path, remote: tuple[Remote, dict[str, str]]) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 32, encoding="ascii")
    with pytest.raises(ConfigError, match="wrong token"), shared(shapes, **{**remote[1], "shared_token": str(wrong)}):
        pass


def test_nobody_there_is_survived(shapes: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 32, encoding="ascii")
    plan = make_plan(shapes)
    with shared(shapes, shared=f"grpc://127.0.0.1:{free_port()}", shared_token=str(token)) as (loader, _):
        assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))


def test_what_redis_holds_is_not_believed(shapes: Path, redis: Redis) -> None:
    store, key = RedisStore(redis.address, entry_keys("token")), b"k" * 32
    with pytest.raises(BadBundle, match="not in Redis"):
        store.read(0, key, 1000)
    store.commit(0, key, memoryview(b"x" * 1000), 1000)
    with pytest.raises(BadBundle):
        store.verify(0, key)
    store.discard(0, key)
    store.close()


def test_ray_makes_batches(shapes: Path, place: ServicePaths, redis: Redis) -> None:
    pytest.importorskip("ray")
    if "FLATOUT_RAY_ALONE" not in os.environ:
        # Ray forks its servers, which crashed once in a process with the threads of other tests: one of its own
        asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::test_ray_makes_batches"]
        subprocess.run(asked, env={**os.environ, "FLATOUT_RAY_ALONE": "1"}, cwd=Path(__file__).parents[2], check=True)
        return
    plan, port = make_plan(shapes), free_port()
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    remote = Remote(place, redis.address, port, callers=(lambda access: RayCaller(None, 1),))
    try:
        with shared(shapes, shared=f"grpc://127.0.0.1:{port}", shared_token=str(place.token)) as (loader, pool):
            wait_until(lambda: remote.service.coordinator.status()["counts"]["made"], "the first batch from Ray")
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert pool.stats.hits
            assert list(remote.service.coordinator.status()["producers"]) == ["ray"]
    finally:
        remote.stop()


def test_data_in_s3(
    bucket, place: ServicePaths, redis: Redis, shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers read from the store that the job names; the batches are those of the folder it is a copy of."""
    shutil.copytree(shapes, bucket.folder, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, bucket.options[option])
    plan, port = make_plan(shapes), free_port()
    remote = Remote(place, redis.address, port, roots=(bucket.url,))
    try:
        with shared(bucket.url, shared=f"grpc://127.0.0.1:{port}", shared_token=str(place.token)) as (loader, pool):
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert pool.stats.hits
    finally:
        remote.stop()


# Lambda


def spec_of(shapes: Path) -> tuple[StreamSpec, int]:
    plan = make_plan(shapes)
    return describe(plan, data_config(shapes), "train"), batch_bytes(plan)


def test_the_function_called_directly(shapes: Path, redis: Redis) -> None:
    spec, most = spec_of(shapes)
    key = batch_key(stream_name(spec), 1, 3)
    made = read_answer(json.dumps(handler(json.loads(make_event(spec, 1, 3, most, None)), None)).encode(), 2.0)
    assert made.gb_seconds > 0
    assert len(read_bundle(memoryview(made.data), key, verify=True).arrays["labels"]) == 8
    access = StoreAccess(redis.address.text, "token")
    stored = read_answer(json.dumps(handler(json.loads(make_event(spec, 1, 3, most, access)), None)).encode(), 2.0)
    assert stored.data is None
    view = open_batch_store(access).read(0, key, most)
    assert read_bundle(view, key, verify=True).bytes == stored.bytes
    assert "token" not in make_event(spec, 1, 3, most, access).decode(), "a function can seal one batch, not others"
    other = spec.model_copy(update={"content": "0" * 64})
    assert handler(json.loads(make_event(other, 1, 3, most, None)), None)["another"] is True
    assert "version" in handler({"version": 99}, None)["error"]


def test_the_function_behind_the_real_runtime_client(shapes: Path, tmp_path: Path) -> None:
    """awslambdaric asks a runtime API for work, as it does inside AWS; this one has one event."""
    pytest.importorskip("awslambdaric")
    spec, most = spec_of(shapes)
    answers: list[bytes] = []
    event = make_event(spec, 0, 1, most, None)

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if answers:
                threading.Event().wait(60)  # no more work: the client waits until it is ended
                return
            self.send_response(200)
            for name, value in (
                ("Aws-Request-Id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd"),
                ("Deadline-Ms", "1893456000000"),
                ("Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:maker"),
                ("Trace-Id", "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1"),
                ("Client-Context", "{}"),
                ("Cognito-Identity", "{}"),
            ):
                self.send_header(f"Lambda-Runtime-{name}", value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(event)))
            self.end_headers()
            self.wfile.write(event)

        def do_POST(self) -> None:
            answers.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {**os.environ, "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{server.server_port}"}
    process = subprocess.Popen(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "awslambdaric",
            "flatout.service.producers.lambda_handler.handler",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: answers or process.poll() is not None, "the function's answer")
        assert answers, f"{process.returncode} {process.stderr.read().decode()}"
        made = read_answer(answers[0], 2.0)
        assert (
            len(read_bundle(memoryview(made.data), batch_key(stream_name(spec), 0, 1), verify=True).arrays["labels"])
            == 8
        )
        assert made.cold
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
        server.shutdown()
        server.server_close()


def test_functions_as_producers(
    shapes: Path, place: ServicePaths, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real boto3 client against a local endpoint that runs the handler; batches go into Redis, costs are counted."""
    pytest.importorskip("boto3")

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(handler(event, None)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ):
        monkeypatch.setenv(name, value)
    plan, port = make_plan(shapes), free_port()
    policy = replace(Remote.policy, usd_per_hour=1.0)
    remote = Remote(place, redis.address, port, policy, (lambda access: LambdaCaller("maker", access, 2, 2.0, 1.7e-5),))
    try:
        with shared(shapes, shared=f"grpc://127.0.0.1:{port}", shared_token=str(place.token)) as (loader, pool):
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert pool.stats.hits
        status = remote.service.coordinator.status()
        assert status["counts"]["requests"] == status["counts"]["made"] > 0
        assert status["counts"]["gb_seconds"] > 0
        assert status["spent_usd"] > 0
    finally:
        remote.stop()
        server.shutdown()
        server.server_close()
