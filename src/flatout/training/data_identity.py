"""What a run knows of the bytes it trains on, in its directory: how a resumed run finds what changed meanwhile."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import AnyDataset
from flatout.data.loading.staging import is_remote
from flatout.data.source.array_file import Arrays, pack_names, read_arrays, unpack_names, write_arrays
from flatout.data.source.dataset import Dataset, Split, some_files
from flatout.data.source.identity import Words, are_equal, are_known, as_words, digest_of
from flatout.errors import StorageError

FILE = "identity.npz"
_COLUMNS = ("place", "names", "lengths", "locators", "digests")
_READ_AT_ONCE, _READERS = 64, 8
_MOST_LOCAL_BYTES, _MOST_REMOTE_BYTES = 8 << 30, 256 << 20  # read before training, to see whether they changed


@dataclass(frozen=True)
class Differences:
    """Between the samples of a run so far and those of today."""

    changed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    reread: int = 0  # files whose locators differ, and whose contents turned out to be the same
    later: int = 0  # too many to read them now: compared with what was read before when training reads them
    unproven: int = 0  # never read before, and now at another place: compared by names and sizes

    def __str__(self) -> str:
        whats = (" changed since the checkpoint", " new since then", " gone since then")
        found = zip((self.changed, self.added, self.removed), whats, strict=True)
        return ", ".join(some_files(names, what) for names, what in found if names)

    def notes(self) -> list[str]:
        moved = "files have other times or places than before"
        unread = "samples were not read before the checkpoint and are at another place now"
        told = (
            (self.reread, f"{moved}, and the same contents: read again"),
            (self.later, f"{moved}: compared as training reads them"),
            (self.unproven, f"{unread}: known by names and sizes only"),
        )
        return [f"{count:,} {what}" for count, what in told if count]


class RunIdentity:
    """Of one run; datasets that are no images know their content from the start, and need none of this."""

    def __init__(self, run: Path, dataset: AnyDataset) -> None:
        self._path = run / FILE
        both = (("train", dataset.train), ("val", dataset.val)) if isinstance(dataset, Dataset) else ()
        self._splits = {name: split for name, split in both if isinstance(split, Split)}
        self._told = {name: np.zeros(len(split), bool) for name, split in self._splits.items()}
        self._saved = -1  # digests in the file, as this process left it

    def follow(self, run: Path) -> None:
        """The run's directory is another one from here on, in which nothing was saved."""
        self._path, self._saved = run / FILE, -1

    def accept_changes(self) -> None:
        for split in self._splits.values():
            split.origins.accepts_changes = True

    def differences(self) -> Differences | None:
        """None where the run did not write it down, or not whole: it was made by an older flatout, or damaged."""
        saved = read_arrays(self._path) if self._splits else None
        if saved is None:
            return None
        found = Differences()
        for name, split in self._splits.items():
            columns = {column: saved[f"{name}.{column}"] for column in _COLUMNS if f"{name}.{column}" in saved}
            part = _compare(split, columns) if len(columns) == len(_COLUMNS) else None
            if part is None:
                return None
            found = Differences(
                *(left + right for left, right in zip(vars(found).values(), vars(part).values(), strict=True))
            )
        return found

    def notes(self, resumes: bool, differences: Differences | None) -> list[str]:
        if differences is not None:
            return differences.notes()
        if not resumes or not self._splits:
            return []
        return ["nothing says what the files held before the checkpoint: compared by names and sizes"]

    def save(self) -> None:
        """Before a checkpoint, where something was learnt since; on a full disk the checkpoint itself will say so."""
        known = sum(int(np.count_nonzero(are_known(split.known_digests()))) for split in self._splits.values())
        if known == self._saved or not self._splits:
            return
        arrays: Arrays = {}
        for name, split in self._splits.items():
            arrays[f"{name}.place"] = pack_names([split.origins.place])
            arrays[f"{name}.names"], arrays[f"{name}.lengths"] = pack_names(split.names), split.lengths
            arrays[f"{name}.locators"], arrays[f"{name}.digests"] = split.known_locators(), split.known_digests()
        with suppress(OSError):
            write_arrays(self._path, arrays)
            self._saved = known

    def learnt(self) -> dict[str, list[str]]:
        """Ids and digests that were not told before, for another rank."""
        new = {}
        for name, split in self._splits.items():
            digests = split.known_digests()
            ids = np.flatnonzero(are_known(digests) & ~self._told[name])
            self._told[name][ids] = True
            new[name] = [ids.astype("<i8").tobytes().hex(), digests[ids].tobytes().hex()]
        return new

    def hear(self, told: Mapping[str, list[str]]) -> None:
        """What another rank has learnt."""
        for name, (ids, digests) in told.items():
            numbers = np.frombuffer(bytes.fromhex(ids), "<i8").astype(np.int64)
            self._told[name][numbers] = True
            self._splits[name].record(numbers, as_words(bytes.fromhex(digests)))


def _compare(now: Split, then: Arrays) -> Differences | None:
    names, place = unpack_names(then["names"]), unpack_names(then["place"])
    lengths, locators, digests = then["lengths"], then["locators"], then["digests"]
    if not len(names) == len(lengths) == len(locators) == len(digests) or len(place) != 1:
        return None
    number = {name: position for position, name in enumerate(names)}
    known = np.array([number.get(name, -1) for name in now.names], np.int64)
    ids = np.flatnonzero(known >= 0)
    old = known[ids]
    same_size = lengths[old] == now.lengths[ids]
    proven = same_size & are_equal(locators[old], now.known_locators()[ids])
    was_read = are_known(digests[old])
    reread = ids[~proven & same_size & was_read]
    if late := not _may_read(now, reread):
        _recall(now, reread, digests[known[reread]])
    equal = _same_contents(now, reread, digests[known[reread]])
    _recall(now, ids[proven], digests[known[ids[proven]]])
    unread = ~proven & same_size & ~was_read
    in_place = place[0] == now.origins.place
    changed = np.concatenate([ids[~same_size], reread[~equal], ids[unread] if in_place else ids[:0]])
    gone = sorted(set(names) - set(now.names))
    return Differences(
        [now.names[i] for i in np.sort(changed).tolist()],
        [now.names[i] for i in np.flatnonzero(known < 0).tolist()],
        gone,
        0 if late else int(np.count_nonzero(equal)),
        int(np.count_nonzero(equal)) if late else 0,
        0 if in_place else int(np.count_nonzero(unread)),
    )


def _may_read(split: Split, ids: NDArray[np.int64]) -> bool:
    unknown = ids[~are_known(split.known_digests_of(ids))]
    return int(split.lengths[unknown].sum()) <= (_MOST_REMOTE_BYTES if is_remote(split) else _MOST_LOCAL_BYTES)


def _recall(split: Split, ids: NDArray[np.int64], digests: Words) -> None:
    """What these bytes must be when they are read: their locators say that they are the same."""
    wanted = are_known(digests) & ~are_known(split.known_digests_of(ids))
    split.origins.note(split.rows[ids[wanted]], digests[wanted])


def _same_contents(split: Split, ids: NDArray[np.int64], digests: Words) -> NDArray[np.bool_]:
    """By what is known already, else by reading them."""
    if len(split.origins.digests):
        unknown = ids[~are_known(split.known_digests_of(ids))]
        if split.origins.stores_originals:
            for part, found in _read(split, unknown):
                split.origins.note(split.rows[part], found)
    return are_equal(digests, split.known_digests_of(ids))


def _read(split: Split, ids: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Words]]:
    """Digests of those that can be read."""

    def read(part: NDArray[np.int64]) -> tuple[NDArray[np.int64], Words]:
        found = [None if isinstance(data, StorageError) else digest_of(data) for data in split.read(part)]
        there = np.array([digest is not None for digest in found], bool)
        return part[there], as_words([digest for digest in found if digest is not None])

    parts = [ids[start : start + _READ_AT_ONCE] for start in range(0, len(ids), _READ_AT_ONCE)]
    with ThreadPoolExecutor(_READERS) as pool:
        yield from pool.map(read, parts)
