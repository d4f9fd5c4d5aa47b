"""Build an obstore client: address, endpoint, timeouts, and its credentials."""

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from flatout.errors import ConfigError, DataError, StorageError
from flatout.machine.net import is_local
from flatout.storage.answers import StoreLocation
from flatout.storage.credentials import profile_provider, s3_endpoint, shared_file_settings

_CLIENT_KEYS = {"allow_http", "allow_invalid_certificates", "root_certificate", "proxy_url", "proxy_excludes"}
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
_SERVICES = {"s3": "AWS S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_HINTS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or ~/.aws/credentials)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}

Option = str | bool


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    bucket: str
    prefix: str


def parse_address(url: str) -> Address:
    """`s3://bucket/prefix`; the prefix is taken literally, without percent-decoding, as the aws command does."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in _CLASSES or not re.fullmatch(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,254}", bucket):
        shown = f"{scheme}://{rest.rpartition('@')[2]}"  # some write keys before an @
        raise DataError(
            f"{shown!r} is not an object store address; write s3://bucket/prefix, gs://... or az://container/..."
        )
    return Address(scheme, bucket, prefix.strip("/"))


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Passed to the client; retries are ours alone, so obstore's are off and the two do not multiply."""

    whole_seconds: float
    """From sending a request to the last byte of its answer."""
    stall_seconds: float
    """Without a single byte arriving."""
    connect_seconds: float = 5.0


def build_client(address: Address, options: Mapping[str, Option], timeouts: Timeouts) -> Any:
    """A new client; reads the environment and ~/.aws again, so rebuilding it picks up renewed credentials."""
    config = {key: _as_text(value) for key, value in options.items() if key not in _CLIENT_KEYS}
    extra = {}
    if address.scheme == "s3":
        if (provider := profile_provider(config, os.environ)) is not None:
            extra["credential_provider"] = provider
        config = shared_file_settings(config, os.environ) | config
    client_options: dict[str, object] = {key: value for key, value in options.items() if key in _CLIENT_KEYS}
    endpoint = _endpoint(address.scheme, options)
    if endpoint is not None and is_local(urlsplit(endpoint).hostname or ""):
        client_options.setdefault("allow_http", True)
    client_options |= {
        "timeout": timedelta(seconds=timeouts.whole_seconds),
        "read_timeout": timedelta(seconds=timeouts.stall_seconds),
        "connect_timeout": timedelta(seconds=min(timeouts.connect_seconds, timeouts.whole_seconds)),
        "user_agent": "flatout",
    }
    store_class = getattr(_obstore_of_this_process(), _CLASSES[address.scheme])
    try:
        return store_class(
            address.bucket,
            prefix=address.prefix or None,
            config=config,
            client_options=client_options,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeouts.whole_seconds)},
            **extra,
        )
    except Exception as error:  # its text may quote values given as options, so it is dropped
        raise _config_error(address, error) from None


def place_of(url: str, options: Mapping[str, Option]) -> StoreLocation:
    scheme = url.partition("://")[0]
    endpoint = _endpoint(scheme, options)
    if endpoint is not None:
        parts = urlsplit(endpoint)
        endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return StoreLocation(url, endpoint or _SERVICES.get(scheme, scheme), _HINTS.get(scheme, "its credentials"))


def origin_of(url: str, options: Mapping[str, Option]) -> str:
    """Tells stores apart whose buckets have one name: by the whole endpoint, and by the account, never by its keys."""
    scheme = url.partition("://")[0]
    parts = urlsplit(_endpoint(scheme, options) or "")
    account = ""
    if scheme == "az":
        account = _as_text(options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") or "")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} {account} {url.rstrip('/')}"


def _config_error(address: Address, error: Exception) -> Exception:
    unknown = re.search(r"Configuration key: '([\w-]+)' is not valid", str(error))
    if unknown:
        return ConfigError(f"unknown store option {unknown.group(1)!r} for {address.scheme}://; the keys are obstore's")
    missing = re.search(r"Missing (\w+)|(\w+) must be specified", str(error))
    what = f"{missing.group(1) or missing.group(2)} is missing" if missing else f"{type(error).__name__} while opening"
    return StorageError(f"{address.scheme}://{address.bucket}: {what}; check {_HINTS[address.scheme]} and the endpoint")


def _as_text(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _endpoint(scheme: str, options: Mapping[str, Option]) -> str | None:
    text = {key: _as_text(value) for key, value in options.items()}
    if scheme == "s3":
        endpoint = s3_endpoint(text, os.environ)
    elif scheme == "gs":
        endpoint = text.get("base_url") or os.environ.get("GOOGLE_BASE_URL")
    else:
        endpoint = text.get("endpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or re.search(r"\s", endpoint)):
        shown = endpoint.rpartition("@")[2]
        raise ConfigError(f"endpoint {shown!r} is not an address; write http://host:port or https://host")
    return endpoint


_runtime_pid: int | None = None


def _obstore_of_this_process() -> Any:
    """obstore.store, refused in a process that was forked from one that used it.

    Its threads do not survive a fork, and the first request in the child would wait for ever. flatout starts its own
    workers, ranks and producers without a fork of such a process (docs/decisions/0002-no-fork.md).
    """
    global _runtime_pid
    if _runtime_pid not in (None, os.getpid()):
        raise StorageError(
            f"object stores cannot be used in process {os.getpid()}, which was forked from one that used them "
            f"({_runtime_pid}); start it by spawn or forkserver, or fork before the first read"
        )
    _runtime_pid = os.getpid()
    return importlib.import_module("obstore.store")
