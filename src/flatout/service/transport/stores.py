"""From what a service says of its store to the store."""

from dataclasses import dataclass, field
from pathlib import Path

from flatout.cache.batch_store import BatchStore
from flatout.cache.shared_memory import MappedStore


@dataclass(frozen=True)
class StoreAccess:
    """Where batches lie, and what it takes to read and write them there."""

    address: str
    """A folder of mapped files, or the address of a Redis, without its password."""
    token: str = field(repr=False)
    """Of the service: from it come the keys that seal what lies in a Redis."""
    password: str | None = field(default=None, repr=False)
    tls_ca: Path | None = None


def open_batch_store(access: StoreAccess) -> BatchStore:
    if "://" not in access.address:
        return MappedStore(Path(access.address))
    from flatout.cache.redis_address import parse_redis
    from flatout.cache.redis_store import RedisStore
    from flatout.cache.sealing import entry_keys

    return RedisStore(parse_redis(access.address, access.password, access.tls_ca), entry_keys(access.token))
