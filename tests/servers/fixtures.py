"""Fixtures over the real servers. tests/conftest.py imports them by name."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from servers.proxy_client import FaultProxy
from servers.s3 import S3Server

DEAD_ENDPOINT = "http://127.0.0.1:9"
"""Nothing listens on the discard port."""


@pytest.fixture(autouse=True)
def _no_cloud_but_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test finds the developer's credentials, and none asks an instance's metadata service for some."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    nowhere = str(tmp_path_factory.getbasetemp() / "no-such-file")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", DEAD_ENDPOINT)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for the session; its folders are buckets, and files written there are seen at once."""
    with S3Server(tmp_path_factory.mktemp("s3"), cache_seconds=0) as server:
        yield server


@pytest.fixture(scope="session")
def _proxy_process(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def fault_proxy(_proxy_process: FaultProxy) -> Iterator[FaultProxy]:
    """In front of s3_server, without faults and with counters at zero."""
    _proxy_process.clear()
    yield _proxy_process
    _proxy_process.clear()


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of its own for one test."""

    name: str
    folder: Path
    options: dict[str, str]
    """For open_store(bucket.url, **bucket.options): through the proxy."""
    direct_options: dict[str, str]

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


_bucket_numbers = count()


@pytest.fixture
def bucket(s3_server: S3Server, fault_proxy: FaultProxy) -> Bucket:
    name = f"bucket-{next(_bucket_numbers)}"
    folder = Path(s3_server.root) / name
    folder.mkdir()
    return Bucket(name, folder, s3_server.options(fault_proxy.endpoint), s3_server.options())
