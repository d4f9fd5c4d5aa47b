"""Seals of batches that lie where others can write: a keyed BLAKE2b over every byte, with a key made from the token.

Each entry has a key of its own, so that whoever makes one batch (a function somewhere) can be given what seals that
batch and no other. A seal says that a holder of the token wrote these bytes under this name; it hides nothing.
"""

import hashlib
import hmac
from collections.abc import Callable
from functools import partial
from typing import Any

SEAL_BYTES = 32
_PURPOSE = b"flatout seal 1"  # the token is also said to the service: other uses of it make other keys

EntryKey = Callable[[bytes], bytes]
"""From the key of a batch (its name) to the key that seals it."""


def entry_keys(token: str) -> EntryKey:
    """The keys of all entries of the service that has this token."""
    return partial(_entry_key, hashlib.blake2b(token.encode(), digest_size=32, person=_PURPOSE).digest())


def _entry_key(service_key: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(key, key=service_key, digest_size=32).digest()


class Sealer:
    """The seal of bytes that come piece by piece, so that the first are summed while the next arrive."""

    def __init__(self, entry_key: bytes) -> None:
        self._digest = hashlib.blake2b(key=entry_key, digest_size=SEAL_BYTES)

    def add(self, piece: Any) -> None:
        self._digest.update(piece)

    def seal(self) -> bytes:
        return self._digest.digest()

    def matches(self, seal: bytes) -> bool:
        return hmac.compare_digest(seal, self.seal())


def seal_of(entry_key: bytes, data: Any) -> bytes:
    sealer = Sealer(entry_key)
    sealer.add(data)
    return sealer.seal()
