"""Opens the store that a service names."""

from dataclasses import dataclass, field
from pathlib import Path

from flatout.cache.batch_store import BatchStore
from flatout.cache.shared_memory import MappedStore


@dataclass(frozen=True)
class StoreAccess:
    """Where batches are kept, and the secrets to read and write them."""

    address: str
    """A folder of mapped files, or the address of a Redis, without its password."""
    token: str = field(repr=False)
    """Of the service; the keys that seal batches in a Redis are derived from it."""
    password: str | None = field(default=None, repr=False)
    tls_ca: Path | None = None


def open_batch_store(access: StoreAccess) -> BatchStore:
    if "://" not in access.address:
        return MappedStore(Path(access.address))
    from flatout.cache.redis_address import parse_redis
    from flatout.cache.redis_store import RedisStore
    from flatout.cache.sealing import entry_keys

    return RedisStore(parse_redis(access.address, access.password, access.tls_ca), entry_keys(access.token))
