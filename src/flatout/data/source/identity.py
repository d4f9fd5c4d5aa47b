"""What proves that two samples are the same bytes: digests of what was read, and locators of what was not.

A digest (XXH3-128) is of the bytes themselves. A locator (storage/locators.py) is of what a file system or an object
store says of them, known from the listing: equal ones prove equal bytes. Names and sizes prove nothing.
docs/identity.md says what is decided by which.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from flatout.data.pixels.decode import native
from flatout.errors import BadFile
from flatout.machine.budgets import cache_folder
from flatout.machine.files import write_whole
from flatout.untrusted import MAX_ARRAYS_BYTES, read_bytes

Words = NDArray[np.uint64]  # [rows, 2]: 16 bytes each; all zeros where nothing is known
DIGEST_BYTES = 16
CAN_DIGEST = native is not None and bool(native.CAN_DIGEST)  # else digests are computed here, from bytes read twice
_LEFT_ALONE = 0xFF  # what the compiled decoder does not digest
_FILE_DIGEST_BYTES = 16


def digest_of(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def as_words(digests: NDArray[Any] | bytes | list[bytes]) -> Words:
    """16 bytes each, in any shape, as pairs of numbers that numpy compares at once."""
    if isinstance(digests, list):
        digests = b"".join(digests)
    raw = digests if isinstance(digests, bytes) else np.ascontiguousarray(digests).tobytes()
    return np.frombuffer(raw, np.uint64).reshape(-1, 2).copy()


def are_known(words: Words) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = np.logical_or(words[:, 0], words[:, 1])
    return known


def are_equal(left: Words, right: Words) -> NDArray[np.bool_]:
    """What is not known is equal to nothing."""
    same = np.equal(left[:, 0], right[:, 0]) & np.equal(left[:, 1], right[:, 1])
    return np.logical_and(same, are_known(left))


class Origins:
    """What is known of the bytes behind every row of a reader; one for all splits over it.

    `place` is where they are; `locators` are those of the listing. `digests` are of the original files, and grow as
    these are read. `expected` are of the bytes as they are stored, where the store has them beforehand: what differs is
    damaged. Written to by the thread that takes over batches.
    """

    def __init__(
        self,
        place: str = "",
        locators: Words | None = None,
        digests: Words | None = None,
        expected: Words | None = None,
        stores_originals: bool = True,
        files: bytes = b"",
    ) -> None:
        self.place = place
        self.locators = np.zeros((0, 2), np.uint64) if locators is None else locators
        self.digests = np.zeros_like(self.locators) if digests is None else digests
        self.expected = expected
        self.files = files  # locators of those in which what is `expected` lies; empty where they prove nothing
        self.verified = np.zeros(0 if expected is None else len(expected), bool)  # as long as the files are these
        self.stores_originals = stores_originals  # else what is read says nothing of the original files
        self.changed: dict[str, bytes] = {}  # name -> digest that was read where another was known
        self.accepts_changes = False
        self._recalled = 0  # rows of the book that were known already

    def __getstate__(self) -> dict[str, Any]:
        """A worker process only checks what it reads; the trainer keeps what is learnt."""
        nothing = np.zeros((0, 2), np.uint64)
        return {**self.__dict__, "locators": nothing, "digests": nothing, "changed": {}}

    def note(self, rows: NDArray[np.int64], digests: Words) -> NDArray[np.bool_] | None:
        """Keep what is new; None where nothing had another digest before, else True for each row that had one."""
        if not self.stores_originals or not len(self.digests):
            return None
        before = self.digests.take(rows, axis=0)
        if bool((before == digests).all()):  # from the second epoch on: two microseconds of a batch
            return None
        known = are_known(before)
        self.digests[rows[~known]] = digests[~known]
        differs = known & ~are_equal(before, digests)
        return differs if bool(differs.any()) else None

    def accept(self, name: str, row: int, digest: bytes) -> None:
        """From now on these are the bytes of the sample."""
        self.changed[name] = digest
        self.digests[row] = np.frombuffer(digest, np.uint64)

    # The book: digests of one start for the next, by locator, so that only what is proven the same is recalled.

    def recall(self) -> None:
        if self.expected is not None:
            self._recall_verified()
            return
        book = _read_book(self._book())
        if book is None or not len(self.locators):
            return
        at = _places_in(book, self.locators)
        found = are_equal(self.locators, book[at, :2]) & ~are_known(self.digests)
        self.digests[found] = book[at[found], 2:]
        self._recalled = int(np.count_nonzero(are_known(self.digests)))

    def remember(self) -> None:
        """Only where something was learnt; a book that cannot be written is done without."""
        if self.expected is not None:
            self._remember_verified()
            return
        known = are_known(self.digests) & are_known(self.locators)
        if int(np.count_nonzero(known)) <= self._recalled or not self.stores_originals:
            return
        self._recalled = int(np.count_nonzero(known))
        book = np.ascontiguousarray(np.concatenate([self.locators[known], self.digests[known]], axis=1)).tobytes()
        _write_book(self._book(), book)

    def _recall_verified(self) -> None:
        """Nothing where a file is another one than it was, or the index."""
        data = _book_bytes(self._book()) if self.files else None
        if data is None or data[:DIGEST_BYTES] != self._stored_where():
            return
        bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=DIGEST_BYTES))
        if len(bits) >= len(self.verified):
            self.verified[:] = bits[: len(self.verified)]
            self._recalled = int(np.count_nonzero(self.verified))

    def _remember_verified(self) -> None:
        count = int(np.count_nonzero(self.verified))
        if self.files and count > self._recalled:
            self._recalled = count
            _write_book(self._book(), self._stored_where() + np.packbits(self.verified).tobytes())

    def _stored_where(self) -> bytes:
        assert self.expected is not None
        return digest_of(self.files + self.expected.tobytes())

    def _book(self) -> Path:
        name = hashlib.sha256(self.place.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return cache_folder() / "digests" / name


def _read_book(path: Path) -> Words | None:
    book = _book_bytes(path)
    return None if book is None or len(book) % 32 else np.frombuffer(book, np.uint64).reshape(-1, 4)


def _places_in(book: Words, locators: Words) -> NDArray[np.int64]:
    """Of each locator, where the book has it if it does. A book of the same files has their order."""
    if np.array_equal(book[:, :2], locators):
        return np.arange(len(book))
    order = np.argsort(book[:, 0])
    return order[np.minimum(np.searchsorted(book[:, 0], locators[:, 0], sorter=order), len(book) - 1)]


def _book_bytes(path: Path) -> bytes | None:
    """None where there is none, or a damaged one: it is learnt again."""
    try:
        data = read_bytes(path, MAX_ARRAYS_BYTES)
    except (BadFile, OSError):
        return None
    book = data[_FILE_DIGEST_BYTES:]
    return book if book and digest_of(book) == data[:_FILE_DIGEST_BYTES] else None


def _write_book(path: Path, book: bytes) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, digest_of(book) + book)


def to_digest(
    expected: NDArray[np.uint8] | None, count: int, passed_over: NDArray[np.bool_] | None
) -> NDArray[np.uint8]:
    """What native.load_slice takes: zeros to be filled, what is expected, or all ones for samples that are not read."""
    digests = np.zeros((count, DIGEST_BYTES), np.uint8) if expected is None else expected.copy()
    if passed_over is not None:
        digests[passed_over] = _LEFT_ALONE
    return digests


def were_left_alone(digests: NDArray[np.uint8]) -> NDArray[np.bool_]:
    words = digests.view(np.uint64)
    left: NDArray[np.bool_] = np.equal(words[:, 0] & words[:, 1], np.uint64(2**64 - 1))
    return left


def were_digested(digests: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Neither left alone nor still to be filled."""
    return are_known(digests.view(np.uint64)) & ~were_left_alone(digests)
