"""From the address of a store to the store."""

from pathlib import Path

from flatout.cache.batch_store import BatchStore
from flatout.cache.shared_memory import MappedStore
from flatout.service.extras import needs


def open_batch_store(address: str) -> BatchStore:
    """A folder of mapped files, or a Redis by its URL."""
    if "://" in address:
        with needs("service"):
            from flatout.cache.redis_store import RedisStore

        return RedisStore(address)
    return MappedStore(Path(address))
