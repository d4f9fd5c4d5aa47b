"""Shared batches among people, stores and networks that are not trusted: real gRPC, a real Redis, one that lies."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from certificates import Authority, make_authority
from flatout.cache import redis_wire
from flatout.cache.bundle import capacity_for, read_bundle, write_bundle
from flatout.cache.redis_address import parse_redis
from flatout.cache.redis_store import RedisStore, check_redis
from flatout.cache.redis_wire import RedisConnection
from flatout.cache.sealing import SEAL_BYTES, entry_keys
from flatout.errors import ConfigError, DataError, ServiceUnavailable
from flatout.service.protocol.messages import Refused, Register
from flatout.service.protocol.specs import batch_bytes, batch_key, describe, open_preparer, stream_name
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.transport.paths import ServicePaths, service_paths
from flatout.service.transport.remote import GrpcConnection
from flatout.service.transport.service import Certificate
from servers.redis_servers import LyingRedis, Redis, free_port
from sharing import Checker, Remote, data_config, in_order, make_plan, producers, read_epochs, shared
from training import command, start, summary, wait_until, write_recipe

pytestmark = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicePaths:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return service_paths()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls") / "ours")


def access(place: ServicePaths, port: int, **more: object) -> dict[str, str]:
    names = {"shared": f"grpc://127.0.0.1:{port}", "shared_token": place.token, **more}
    return {name: str(value) for name, value in names.items()}


def test_a_redis_that_lies_about_lengths_leaves_the_job_to_itself(shapes: Path, place: ServicePaths) -> None:
    lengths = iter([b"$900000000000\r\n", b"*1000000000\r\n", b"$" + b"9" * 5000] * 1000)
    liar = LyingRedis(lambda words: next(lengths) if words[0] == b"GET" else None)
    plan, port = make_plan(shapes), free_port()
    remote = Remote(place, liar.address(), port)
    try:
        with shared(shapes, **access(place, port)) as (loader, pool):
            assert read_epochs(loader, range(2), Checker(plan)) == in_order(plan, range(2))
            assert not pool.stats.hits
            assert pool.stats.spoilt
            assert pool.stats.alone, "after three in a row its own loader takes over"
            assert "Redis" in pool.stats.last_trouble
    finally:
        remote.stop()
        liar.close()


def test_whoever_writes_to_redis_cannot_forge_training_data(shapes: Path, place: ServicePaths, redis: Redis) -> None:
    """Other labels, with right names, lengths and checksums, under every kind of seal that can be made without the token."""
    plan, port = make_plan(shapes), free_port()
    writer = RedisConnection(redis.address)
    spec = describe(plan, data_config(shapes), "train")
    others_keys, forged = entry_keys("a guess"), 0

    def forge(count: int) -> None:
        nonlocal forged
        for epoch in range(2):
            for index in range(plan.batches_per_epoch):
                key = batch_key(stream_name(spec), epoch, index)
                writer.send(b"GET", b"flatout:" + key)
                if (length := writer.value_bytes(1 << 24)) is None:
                    continue
                value = bytearray(length)
                writer.take_into(memoryview(value))
                writer.end_value()
                bundle = read_bundle(memoryview(value)[SEAL_BYTES:], key, verify=True)
                arrays = {**bundle.arrays, "labels": np.zeros_like(bundle.arrays["labels"])}
                space = memoryview(bytearray(capacity_for(bundle.bytes, len(arrays), 1000)))
                space = space[: write_bundle(space, key, arrays, dict(bundle.meta))]
                if count % 2:
                    RedisStore(redis.address, others_keys).commit(0, key, space, len(space))
                else:
                    writer.ask(b"SET", b"flatout:" + key, [bytes(value[:SEAL_BYTES]), space])
                forged += 1

    remote = Remote(place, redis.address, port)
    try:
        with shared(shapes, **access(place, port)) as (loader, pool):
            wait_until(lambda: remote.service.coordinator.status()["ready"] >= 3, "batches to forge")
            forge(0)
            assert read_epochs(loader, range(2), Checker(plan), forge) == in_order(plan, range(2))
            assert forged
            assert pool.stats.spoilt
    finally:
        remote.stop()
        writer.close()


def test_tls(shapes: Path, place: ServicePaths, redis: Redis, authority: Authority, tmp_path: Path) -> None:
    plan, port = make_plan(shapes), free_port()
    remote = Remote(place, redis.address, port, tls=Certificate(authority.chain, authority.key))
    strangers = make_authority(tmp_path / "strangers")
    try:
        with shared(shapes, **access(place, port, shared_tls_ca=authority.ca)) as (loader, pool):
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert pool.stats.hits == plan.batches_per_epoch
        for wrong in ({}, {"shared_tls_ca": strangers.ca}):
            with shared(shapes, **access(place, port, **wrong)) as (loader, pool):
                assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
                assert not pool.stats.hits
                assert "UNAVAILABLE" in loader.notes[0]
        with (
            pytest.raises(ConfigError, match="cannot be read"),
            shared(shapes, **access(place, port, shared_tls_ca="no")),
        ):
            pass
    finally:
        remote.stop()


def test_a_certificate_without_its_key_is_one_line(
    place: ServicePaths, redis: Redis, authority: Authority, tmp_path: Path
) -> None:
    strangers = make_authority(tmp_path / "strangers")
    with pytest.raises(ConfigError, match="belong together"):
        Remote(place, redis.address, free_port(), tls=Certificate(authority.chain, strangers.key))


def test_a_token_holder_opens_only_what_was_allowed(
    shapes: Path, place: ServicePaths, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder than the allowed one: the job is told, and reads on its own. /etc is not even looked at."""
    plan, port, allowed = make_plan(shapes), free_port(), tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "etc").symlink_to("/etc")
    remote = Remote(place, redis.address, port, roots=(str(allowed),))
    line = GrpcConnection(f"127.0.0.1:{port}", place.token.read_text(), "job", "curious", 10.0)
    spec = describe(plan, data_config(shapes), "train")

    def registered(spec: StreamSpec) -> Any:
        return line.ask(
            Register(
                stream=stream_name(spec), spec=spec, batches_per_epoch=1, batch_bytes=batch_bytes(plan), position=0
            ),
            10.0,
        )

    try:
        with shared(shapes, **access(place, port)) as (loader, pool):
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert not pool.stats.hits
            assert f"does not open {shapes}" in loader.notes[0]
        for path in ("/etc", f"{allowed}/etc", f"{allowed}/../../../../etc", "s3://bucket", "file:///etc"):
            data = spec.data.model_copy(update={"path": path})
            answer = registered(spec.model_copy(update={"data": data}))
            assert isinstance(answer, Refused)
            assert answer.reason.startswith(f"the service does not open {path}")
        assert not remote.service.coordinator.status()["counts"]["failures"], "nobody was asked to open anything"
    finally:
        line.close()
        remote.stop()


def test_a_stream_cannot_be_registered_under_the_name_of_another(
    shapes: Path, place: ServicePaths, redis: Redis
) -> None:
    plan, port = make_plan(shapes), free_port()
    remote = Remote(place, redis.address, port)
    line = GrpcConnection(f"127.0.0.1:{port}", place.token.read_text(), "job", "liar", 10.0)
    spec = describe(plan, data_config(shapes), "train")
    views = spec.view_values.model_copy(update={"flip": 0.0})
    try:
        wrong = Register(
            stream=stream_name(spec),
            spec=spec.model_copy(update={"seed": 1}),
            batches_per_epoch=10,
            batch_bytes=batch_bytes(plan),
            position=0,
        )
        answer = line.ask(wrong, 10.0)
        assert isinstance(answer, Refused)
        assert "name" in answer.reason
        answer = line.ask(wrong.model_copy(update={"spec": spec.model_copy(update={"view_values": views})}), 10.0)
        assert isinstance(answer, Refused)
        assert "other pixels" in answer.reason
        with pytest.raises(DataError, match="other pixels"):  # at a producer of another version, too
            open_preparer(spec.model_copy(update={"view_values": views}))
        with shared(shapes, **access(place, port)) as (loader, pool):
            assert read_epochs(loader, range(1), Checker(plan)) == in_order(plan, range(1))
            assert pool.stats.hits, "nobody can spoil the name for others"
    finally:
        line.close()
        remote.stop()


def test_a_redis_behind_tls(
    redis: Redis, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_wire, "_DEADLINE_SECONDS", 2.0)  # the one without TLS waits for the rest of a line
    names = {"cert": authority.chain, "key": authority.key, "ca-cert": authority.ca}
    options = [word for name, path in names.items() for word in (f"--tls-{name}-file", str(path))]
    server = Redis(
        tmp_path, *options, "--tls-auth-clients", "no", "--requirepass", "canary", password="canary", ca=authority.ca
    )
    try:
        store, key = RedisStore(server.address, entry_keys("token")), b"k" * 32
        store.commit(0, key, memoryview(bytes(300_000)), 300_000)
        assert bytes(store.read(0, key, 300_000)) == bytes(300_000)
        store.close()
        for address in (
            parse_redis(server.address.text, "canary"),  # no authority of this system has signed it
            parse_redis(server.address.text, "wrong", authority.ca),
            parse_redis(server.address.text.replace("rediss", "redis"), "canary"),
            parse_redis(redis.address.text.replace("redis:", "rediss:"), None, authority.ca),
        ):
            with pytest.raises(ServiceUnavailable) as refused:
                check_redis(address)
            assert "canary" not in str(refused.value)
    finally:
        server.kill()


def test_a_password_is_nowhere_but_where_it_belongs(
    shapes: Path, place: ServicePaths, work: Path, tmp_path: Path
) -> None:
    """Served by the command, with a job of the command: both come through, and the canary is in no command line, no
    file of the run and no word that was printed."""
    redis, port = Redis(tmp_path, "--requirepass", "canary", password="canary"), free_port()
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "FLATOUT_REDIS_PASSWORD": "canary"}
    told = ("--listen", f"127.0.0.1:{port}", "--redis", redis.address.text, "--data", str(shapes), "--threads", "1")
    serving = start("serve", *told, "--trace", work / "trace.jsonl", cwd=work, environment=environment)
    try:
        wait_until(place.token.exists, "the service")
        config = write_recipe(work / "tiny.yaml", shapes, **{f"data__{k}": v for k, v in access(place, port).items()})
        wait_until(lambda: _listens(port), "the service")
        trained = command("train", config, cwd=work, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
        assert trained.code == 0, trained.err
        assert summary(work / "runs/tiny")["shared"]["hits"]
        service = psutil.Process(serving.pid)
        assert producers(service)
        lines = [" ".join(each.cmdline()) for each in (service, *service.children(recursive=True))]
        stopped = command("cache", "stop", cwd=work, environment=environment)
        served = serving.wait()
        assert "no TLS" in served.err
        written = [each for each in work.rglob("*") if each.is_file()]
        said = [trained.out, trained.err, served.out, served.err, stopped.out, *lines]
        assert not any("canary" in each for each in said)
        assert not any(b"canary" in each.read_bytes() for each in written)
    finally:
        if serving.running:
            serving.kill()
        redis.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "0.0.0.0:7070"), "no TLS"),
        (("--redis", "redis://:canary@127.0.0.1:1"), "FLATOUT_REDIS_PASSWORD"),
        (("--redis", "redis://10.9.8.7:1"), "in clear"),
    ],
)
def test_the_command_refuses_in_one_line(
    options: tuple[str, str], says: str, redis: Redis, work: Path, tmp_path: Path
) -> None:
    values = {"--listen": "127.0.0.1:7070", "--redis": redis.address.text, "--data": "/data"} | dict([options])
    words = [word for pair in values.items() for word in pair]
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    if says == "in clear":
        environment["FLATOUT_REDIS_PASSWORD"] = "canary"
    refused = command("serve", *words, cwd=work, environment=environment)
    assert refused.code == 2
    assert says in refused.err
    assert "canary" not in refused.err
    assert len(refused.err.strip().splitlines()) == 1
