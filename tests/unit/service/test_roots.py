"""Which data a service opens for others, and how gRPC may be reached."""

from pathlib import Path

import pytest

from flatout.commands.serve import ServeOptions, serve
from flatout.errors import ConfigError
from flatout.service.transport.roots import allowed_roots


def test_paths_are_followed_to_where_they_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed / "set", outside):
        folder.mkdir(parents=True)
    (allowed / "way-out").symlink_to(outside)
    (allowed / "way-round").symlink_to(allowed / "set")
    (tmp_path / "way-in").symlink_to(allowed)
    monkeypatch.setenv("HOME", str(outside))
    roots = allowed_roots([str(tmp_path / "way-in")])
    inside = str(allowed.resolve() / "set")
    for path in (
        inside,
        f"{inside}/",
        f"{allowed}/./way-out/../allowed/set",
        f"{tmp_path}/way-in/set",
        f"{allowed}/way-round",
        f"file://{allowed}/set",
        f"file://{allowed}/%73et",
    ):
        assert roots.resolved(path) == inside, path
    assert roots.resolved(str(allowed)) == str(allowed.resolve())
    for path in (
        "/etc",
        "/",
        "",
        "~",
        "etc",
        str(outside),
        f"{allowed}/../allowed-not",
        f"{allowed}/way-out",
        f"{inside}/../..",
        f"file://{allowed}/%2e%2e/allowed-not",
        f"{allowed}/%2e%2e/x\0",
        f"s3:/{allowed}",
        f"s3://{allowed}",
        f"http://{allowed}",
        f"memory://{allowed}",
        f"FILE://{allowed}/../../etc",
        "s3://bucket/set",
    ):
        assert roots.resolved(path) is None, path
    assert allowed_roots(["/"]).resolved("/etc/..") == "/"


def test_prefixes_of_object_stores_are_compared_part_by_part() -> None:
    roots = allowed_roots(["s3://bucket/data/", "gs://whole"])
    for path, opened in (
        ("s3://bucket/data", "s3://bucket/data"),
        ("s3://bucket/data/set/", "s3://bucket/data/set"),
        ("gs://whole", "gs://whole"),
        ("gs://whole/any/thing", "gs://whole/any/thing"),
        ("s3://bucket/data/%2e%2e", "s3://bucket/data/%2e%2e"),  # a prefix of this very name: nothing decodes it
    ):
        assert roots.resolved(path) == opened
    for path in (
        "s3://bucket",
        "s3://bucket/database",
        "s3://bucket/data/../secret",
        "s3://bucket/data//../secret",
        "s3://bucket/data/./x",
        "s3://other/data",
        "gs://bucket/data",
        "az://bucket/data",
        "s3://bucket/da",
        "S3://bucket/data",
        "s3://me@bucket/data",
        "/bucket/data",
        "s3://whole/x",
    ):
        assert roots.resolved(path) is None, path


SAFE = ServeOptions(listen="127.0.0.1:0", redis="redis://127.0.0.1:1", data=("/data",))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": ()}, "--data ROOT"),
        ({"data": ("http://x",)}, "--data"),
        ({"redis": None}, "go together"),
        ({"tls_cert": Path("cert")}, "private key"),
        ({"redis": "redis://:secret@127.0.0.1:1"}, "--redis-password-file"),
        ({"redis_password_file": Path("nowhere")}, "cannot be read"),
    ],
)
def test_serving_more_than_is_safe_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        serve(ServeOptions(**{**vars(SAFE), **changes}), quiet=True)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7070", "10.0.0.5:7070", "[::]:7070", "cache.example.org:7070", "localhost.x:1"]
)
def test_beyond_loopback_there_is_no_grpc_without_tls(address: str) -> None:
    remote = pytest.importorskip("flatout.service.transport.remote")
    for use in (
        lambda: remote.GrpcServer(None, address),
        lambda: remote.GrpcConnection(address, "token", "job", "name", 1.0),
    ):
        with pytest.raises(ConfigError, match="no TLS; "):
            use()


@pytest.mark.parametrize(
    "address", ["dns:///127.0.0.1:1", "ipv4:10.0.0.5:7070", "127.0.0.1", "unix:/x", "a b:1", ":1", ""]
)
def test_only_hosts_and_ports_are_addresses(address: str) -> None:
    remote = pytest.importorskip("flatout.service.transport.remote")
    with pytest.raises(ConfigError, match="not HOST:PORT"):
        remote.check_encrypted(address, True, address, "")


def test_a_token_comes_by_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = pytest.importorskip("flatout.service.transport.remote")
    monkeypatch.delenv("FLATOUT_SHARED_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="FLATOUT_SHARED_TOKEN"):
        remote.read_token(None)
    monkeypatch.setenv("FLATOUT_SHARED_TOKEN", "of the environment")
    assert remote.read_token(None) == "of the environment"
    (tmp_path / "token").write_text("of the file\n")
    assert remote.read_token(tmp_path / "token") == "of the file"
