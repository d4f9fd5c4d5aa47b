"""A Redis that lies, hangs or was written to by others gives batches that are not there, and nothing else."""

import hashlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.cache import redis_wire
from flatout.cache.bundle import HEADER_BYTES
from flatout.cache.redis_address import parse_redis, redis_password
from flatout.cache.redis_store import RedisStore, check_redis
from flatout.cache.sealing import SEAL_BYTES, Sealer, entry_keys, seal_of
from flatout.errors import BadBundle, ConfigError, ServiceUnavailable
from flatout.machine.net import is_local
from servers.redis_servers import Lie, LyingRedis

KEY, MOST = b"k" * 32, 1000
BUNDLE = bytes(range(200))


@pytest.fixture
def liar() -> Iterator[LyingRedis]:
    server = LyingRedis(lambda words: None)
    yield server
    server.close()


def store_at(liar: LyingRedis, scheme: str = "redis", token: str = "token") -> RedisStore:
    return RedisStore(liar.address(scheme), entry_keys(token))


def answering(command: bytes, answer: bytes) -> Lie:
    return lambda words: answer if words[0] == command else None


def test_what_was_sealed_is_read(liar: LyingRedis) -> None:
    store = store_at(liar)
    store.commit(0, KEY, memoryview(BUNDLE), len(BUNDLE))
    assert bytes(store.read(0, KEY, len(BUNDLE))) == BUNDLE
    with pytest.raises(BadBundle, match="at most"):
        store.read(0, KEY, len(BUNDLE) - 1)
    store.close()


def test_a_large_batch_is_sealed_in_leaves_by_threads_or_not() -> None:
    key, data = b"e" * 32, bytearray(5 << 20)
    seal = seal_of(key, memoryview(data))
    for pieces in (1 << 20, 3 << 20, 5 << 20):
        sealer = Sealer(key, memoryview(data), in_threads=True)
        for start in range(0, len(data), pieces):
            sealer.arrived(min(pieces, len(data) - start))
        assert sealer.matches(seal)
    for at in (0, (2 << 20) - 1, 2 << 20, len(data) - 1):
        data[at] ^= 1
        assert seal_of(key, memoryview(data)) != seal
        data[at] ^= 1
    assert seal_of(key, memoryview(data)[: 4 << 20]) != seal
    data[:1] = b"x"
    swapped = bytes(data[2 << 20 : 4 << 20]) + bytes(data[: 2 << 20]) + bytes(data[4 << 20 :])
    assert seal_of(key, memoryview(swapped)) != seal_of(key, memoryview(data)), "leaves have places"


LIES = {
    "a value that no memory holds": b"$900000000000\r\n",
    "a value one byte too long": b"$%d\r\n" % (MOST + SEAL_BYTES + 1),
    "a value too short for a batch": b"$%d\r\n%b\r\n"
    % (SEAL_BYTES + HEADER_BYTES - 1, bytes(SEAL_BYTES + HEADER_BYTES - 1)),
    "a negative length": b"$-5\r\n",
    "a length of a thousand digits": b"$" + b"9" * 1000 + b"\r\n",
    "a length that is no number": b"$\xb2\r\n",
    "a line without end": b"$" + b"1" * 100_000,
    "a billion values": b"*1000000000\r\n",
    "values within values": b"*1\r\n" * 10_000,
    "a number": b":5\r\n",
    "a value that goes on": b"$200\r\n" + bytes(300),
    "half a value, and nothing more": b"",
    "another server": b"-MOVED 1 127.0.0.1:1\r\n",
    "an error": b"-ERR no\r\n",
    "noise": b"\x00\xff\r\n",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_is_a_batch_that_is_not_there(lie: bytes, liar: LyingRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_wire, "_DEADLINE_SECONDS", 0.3)
    store, before = store_at(liar), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for command, use in (
        (b"GET", lambda: store.read(0, KEY, MOST)),
        (b"GETRANGE", lambda: store.verify(0, KEY)),
        (b"STRLEN", lambda: store.verify(0, KEY)),
    ):
        liar.lie = answering(command, lie)
        with pytest.raises(BadBundle):
            use()
    liar.lie = answering(b"PING", lie)
    with pytest.raises(ServiceUnavailable, match="redis://"):
        check_redis(liar.address())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "kilobytes"
    store.close()


PIECES = [
    b"$",
    b"-",
    b"+",
    b":",
    b"*",
    b"_",
    b"\r\n",
    b"-1",
    b"0",
    b"9",
    b"200",
    b"$232\r\n",
    b"MOVED 1 x:1",
    b"\x00",
    b"\xb2",
]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=40), max_size=12).map(b"".join))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_is_a_batch_that_is_not_there(liar: LyingRedis, noise: bytes) -> None:
    liar.hangs_up, liar.lie = True, lambda words: noise
    for scheme in ("redis", "redis+cluster"):
        store = store_at(liar, scheme)
        for use in (lambda: store.read(0, KEY, MOST), lambda: store.verify(0, KEY)):  # noqa: B023 (used at once)
            with pytest.raises(BadBundle):
                use()
        store.touch(KEY)
        store.discard(0, KEY)


def test_silence_in_mid_value_has_a_deadline(liar: LyingRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_wire, "_DEADLINE_SECONDS", 0.2)
    store = store_at(liar)
    liar.lie = answering(b"GET", b"$500\r\n" + bytes(100))  # and nothing more
    with pytest.raises(BadBundle, match="in time"):
        store.read(0, KEY, MOST)
    store.close()


def test_what_others_wrote_is_not_believed(liar: LyingRedis) -> None:
    """Whoever can write to the Redis knows everything but the token."""
    store, name = store_at(liar), b"flatout:" + KEY
    store.commit(0, KEY, memoryview(BUNDLE), len(BUNDLE))
    sealed, forged = liar.values[name], BUNDLE[:-1] + b"!"
    unkeyed = hashlib.blake2b(forged, digest_size=SEAL_BYTES).digest()
    other_batch = seal_of(entry_keys("token")(b"o" * 32), memoryview(BUNDLE))
    for value in (
        sealed[:-1] + b"!",  # changed
        unkeyed + forged,  # summed anew, without a key
        seal_of(entry_keys("another")(KEY), memoryview(forged)) + forged,  # sealed by somebody else
        other_batch + BUNDLE,  # what was sealed under another name
        sealed[:-1],  # cut
        bytes(SEAL_BYTES) + BUNDLE,
    ):
        liar.values[name] = value
        with pytest.raises(BadBundle, match="holder of the token"):
            store.read(0, KEY, MOST)
    liar.values[name] = sealed
    assert bytes(store.read(0, KEY, MOST)) == BUNDLE
    store.close()


def test_a_cluster_names_another_server(liar: LyingRedis) -> None:
    other = LyingRedis(lambda words: None)
    liar.lie = lambda words: b"-MOVED 7 127.0.0.1:%d\r\n" % other.port
    try:
        store = store_at(liar, "redis+cluster")
        store.commit(0, KEY, memoryview(BUNDLE), len(BUNDLE))
        assert bytes(store.read(0, KEY, MOST)) == BUNDLE
        assert len(liar.heard) == 1, "the next command goes there at once"
        other.lie = liar.lie
        with pytest.raises(BadBundle, match="from server to server"):
            store.read(0, KEY, MOST)
        other.lie = lambda words: b""
        liar.lie = lambda words: None
        for _ in range(2):  # the first finds the server gone, the second asks the one that it knows
            with pytest.raises(BadBundle) as missing:
                store.read(0, KEY, MOST)
        assert "not in Redis" in str(missing.value)
        for nowhere in (
            b"127.0.0.1:99999",
            b"127.0.0.1:\xc2\xb2",
            b"127.0.0.1",
            b"a" * 300 + b":1",
            b"\x00:1",
            b"127.0.0.1:1",
        ):
            liar.lie = answering(b"GET", b"-MOVED 7 " + nowhere + b"\r\n")
            with pytest.raises(BadBundle):
                store_at(liar, "redis+cluster").read(0, KEY, MOST)
        liar.lie = lambda words: b"-MOVED 7 10.9.8.7:6379\r\n" if words[0] == b"GET" else None
        secret = RedisStore(liar.address("redis+cluster", "secret"), entry_keys("token"))
        with pytest.raises(BadBundle, match="in clear"):
            secret.read(0, KEY, MOST)
    finally:
        other.close()


def test_a_connection_that_was_cut_while_idle_is_made_anew(liar: LyingRedis) -> None:
    store = store_at(liar)
    store.commit(0, KEY, memoryview(BUNDLE), len(BUNDLE))
    liar.lie = lambda words: b"" if len(liar.heard) == 2 else None  # hangs up once
    assert bytes(store.read(0, KEY, MOST)) == BUNDLE
    assert [words[0] for words in liar.heard] == [b"SET", b"GET", b"GET"]
    store.close()


@pytest.mark.parametrize(
    ("url", "password", "says"),
    [
        ("redis://:secret@127.0.0.1", None, "list of processes"),
        ("redis://10.0.0.6:6379", "secret", "in clear"),
        ("redis://127.0.0.1.example.org", "secret", "in clear"),
        ("redis+cluster://cache:6379", "secret", "in clear"),
        ("redis://127.0.0.1?password=secret", None, "after"),
        ("rediss://cache?ssl_cert_reqs=none", None, "after"),
        ("http://cache", None, "not the address"),
        ("redis://", None, "not the address"),
        ("redis://cache:port", None, "not the address"),
        ("redis://cache/one", None, "not the address"),
    ],
)
def test_an_address_that_gives_a_password_away_is_refused(url: str, password: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        parse_redis(url, password)
    assert "secret" not in str(refused.value)


def test_addresses_that_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (
        "redis://127.0.0.1:1/2",
        "redis://localhost",
        "redis://[::1]:5",
        "unix:///run/redis.sock",
        "rediss://c:1",
    ):
        found = parse_redis(url, "secret")
        assert found.password == "secret"
        assert "secret" not in repr(found) + found.text
    assert parse_redis("rediss+cluster://me@cache:7/3").user == "me"
    assert [is_local(each) for each in ("127.8.8.8", "::1", "10.0.0.1", "localhost.example.org", "0.0.0.0")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    monkeypatch.setenv("FLATOUT_REDIS_PASSWORD", "from the environment")
    (tmp_path / "password").write_text("from a file\n")
    assert redis_password(None) == "from the environment"
    assert redis_password(tmp_path / "password") == "from a file"
    with pytest.raises(ConfigError, match="cannot be read"):
        redis_password(tmp_path / "nothing")
