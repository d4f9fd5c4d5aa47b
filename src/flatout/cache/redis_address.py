"""Addresses of a Redis: parsed, and refused where a password would be exposed. Pure, but for `redis_password`."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flatout.errors import ConfigError
from flatout.machine.net import is_local

PASSWORD_VARIABLE = "FLATOUT_REDIS_PASSWORD"  # noqa: S105 (its name)
_SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")
_EXAMPLES = "write redis://HOST:PORT/DB, rediss://HOST:PORT (TLS), redis+cluster://HOST:PORT or unix:///PATH"
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")


@dataclass(frozen=True)
class RedisAddress:
    """One server, or the first to ask of a cluster. `text` is the address without user and password, for messages."""

    text: str
    host: str = ""
    port: int = 6379
    path: str = ""
    """Of a unix socket, instead of host and port."""
    database: int = 0
    tls: bool = False
    is_cluster: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    """Authority that has signed the server's certificate; None is those of the system."""


def parse_redis(url: str, password: str | None = None, ca: Path | None = None) -> RedisAddress:
    """From a URL. A password in it, or one that would cross a network in clear, is a ConfigError."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment:
        raise ConfigError(f"{shown!r} is not the address of a Redis (options after ? are not taken); {_EXAMPLES}")
    if parts.password is not None:
        raise ConfigError(
            f"the address of the Redis {shown} has a password in it, which every user of this machine can read in the "
            f"list of processes; put it into a file (--redis-password-file) or into {PASSWORD_VARIABLE}"
        )
    user = unquote(parts.username) if parts.username else None
    if parts.scheme == "unix":
        return RedisAddress(shown, path=unquote(parts.path), user=user, password=password)
    try:
        host, port, database = parts.hostname or "", parts.port or 6379, int(parts.path.strip("/") or 0)
    except ValueError:
        host, port, database = "", 0, 0
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{shown!r} is not the address of a Redis; {_EXAMPLES}")
    tls = parts.scheme.startswith("rediss")
    if password is not None and not tls and not is_local(host):
        raise ConfigError(
            f"the password of the Redis {shown} would cross the network in clear; use rediss:// (TLS), or a Redis on "
            "this machine"
        )
    return RedisAddress(shown, host, port, "", database, tls, "+cluster" in parts.scheme, user, password, ca)


def redis_password(file: Path | None) -> str | None:
    """From the file, or else from the environment; None where there is none."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the password of the Redis cannot be read from {file}: {error}") from None
