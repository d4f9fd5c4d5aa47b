"""Parallel text: sentence pairs from two files with a line each, or one TSV; plain or .gz, in a folder or a store."""

import gzip
import hashlib
import io
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flatout.data.batch import Failure, LoadStats
from flatout.data.text.vocabulary import Vocabulary, read_vocabulary, stored_vocabulary
from flatout.errors import DataError
from flatout.sampling import uniforms
from flatout.storage import open_checked
from flatout.storage.counters import StoreCounters
from flatout.storage.protocol import Store, counters_of, read_one
from flatout.units import format_bytes

if TYPE_CHECKING:
    from flatout.config.schema import DataConfig

_HOLDOUT_STREAM = 0xFF
_MOST_EXPANSION, _SMALL_BYTES = 100, 64 << 20  # of a .gz file: text takes a third to a tenth of its length
VOCABULARY_FILE = "vocabulary.json"  # in the run's directory


@dataclass(frozen=True)
class Lines:
    """The pairs of one split as they stand in the files: a pair's number is its line's, from 0."""

    files: str  # as names and messages give them: train.en.gz
    source: list[str]
    target: list[str]
    reasons: dict[int, str]  # lines that cannot be used
    bytes: int
    digest: str
    fetch_seconds: float = 0.0

    def usable(self) -> Iterator[int]:
        return (number for number in range(len(self.source)) if number not in self.reasons)


@dataclass(frozen=True)
class Tokens:
    """Token ids of many lines in one array."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]  # one more than lines

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Tokens":
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(np.fromiter((each for row in rows for each in row), np.int32, int(starts[-1])), starts)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def __getitem__(self, number: int) -> NDArray[np.int32]:
        return self.ids[self.starts[number] : self.starts[number + 1]]


@dataclass(frozen=True)
class TextSplit:
    """Tokenised pairs; the sample id is the line number from 0. Some cannot be used, and keep their number."""

    files: str
    source: Tokens
    target: Tokens
    failures: dict[int, Failure]
    references: tuple[str, ...]  # the target's own text, to score translations; empty where nobody asks
    total_bytes: int  # of both languages, uncompressed
    digest: str
    opened: LoadStats  # what reading and tokenising it took

    def __len__(self) -> int:
        return len(self.source.lengths)

    def name(self, sample_id: int) -> str:
        return line_name(self.files, sample_id)

    @cached_property
    def usable(self) -> NDArray[np.int64]:
        return np.array([number for number in range(len(self)) if number not in self.failures], np.int64)


@dataclass(frozen=True)
class ParallelText:
    """Training and validation pairs with one vocabulary."""

    url: str
    languages: tuple[str, str]
    vocabulary: Vocabulary
    train: TextSplit
    val: TextSplit
    requests: StoreCounters  # that reading it took: from then on it is in memory
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Of the text, the languages and the vocabulary: what decides which tokens a sample is."""
        parts = (*self.languages, self.train.digest, self.val.digest, self.vocabulary.digest)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:32]

    def content_fingerprint(self) -> str:
        return self.fingerprint  # all of it was read

    def changed_names(self) -> tuple[str, ...]:
        return ()  # it is in memory

    @property
    def total_bytes(self) -> int:
        return self.train.total_bytes + self.val.total_bytes

    def store_counters(self) -> StoreCounters:
        return self.requests


def open_parallel_text(config: "DataConfig", run_folder: Path | None = None) -> ParallelText:
    """Read, check, learn the vocabulary or take the one of the run that goes on here, tokenise."""
    if not config.path:
        raise DataError("data.path is not set; give the folder of train.en, train.de, val.en, val.de")
    languages = _languages(config)
    store = open_checked(config.path)
    names = {entry.name for entry in store.entries()}
    train = _read_split(store, names, "train", languages)
    if train is None:
        raise DataError(
            f"{config.path} has no train.{languages[0]} with train.{languages[1]}, and no train.tsv (plain or .gz); "
            f"it has {', '.join(sorted(names)[:8]) or 'nothing'}"
        )
    val = _read_split(store, names, "val", languages)
    notes: tuple[str, ...] = ()
    if val is None:
        train, val = _held_out(train, config.holdout)
        notes = (f"no val files in {config.path}: held out {len(val.source)} of the training lines",)
    vocabulary = _vocabulary(train, config, run_folder)
    splits = [_tokenised(lines, vocabulary, config.max_tokens, keep_text=lines is val) for lines in (train, val)]
    return ParallelText(config.path, languages, vocabulary, splits[0], splits[1], counters_of(store), notes)


def line_name(files: str, number: int) -> str:
    return f"{files}:{number + 1}"


def _languages(config: "DataConfig") -> tuple[str, str]:
    source, target = config.source_language, config.target_language
    if source is None or target is None or source == target:
        raise DataError(
            f"data.source_language is {source} and data.target_language is {target}; "
            "name both, as the files' endings, for example en and de"
        )
    return source, target


def _read_split(store: Store, names: set[str], split: str, languages: tuple[str, str]) -> Lines | None:
    started = time.perf_counter()
    lines = _find_lines(store, names, split, languages)
    return None if lines is None else replace(lines, fetch_seconds=time.perf_counter() - started)


def _find_lines(store: Store, names: set[str], split: str, languages: tuple[str, str]) -> Lines | None:
    def there(name: str) -> str | None:
        return next((each for each in (name, f"{name}.gz") if each in names), None)

    pair = [there(f"{split}.{language}") for language in languages]
    if pair[0] is not None and pair[1] is not None:
        columns = [_lines(_read(store, name)) for name in pair if name is not None]
        return _paired(f"{pair[0]} {pair[1]}", columns[0], columns[1], {})
    table = there(f"{split}.tsv")
    if table is None:
        return None
    rows = [line.split(b"\t") for line in _lines(_read(store, table))]
    wrong = {number: f"has {len(row)} columns, not 2" for number, row in enumerate(rows) if len(row) != 2}
    source, target = ([row[column] if len(row) == 2 else b"" for row in rows] for column in (0, 1))
    return _paired(table, source, target, wrong)


def _read(store: Store, name: str) -> bytes:
    answer = read_one(store, name)
    if not name.endswith(".gz"):
        return answer
    return unpacked(answer, name)


def unpacked(data: bytes, name: object) -> bytes:
    """The content of a .gz file. Text that is more than _MOST_EXPANSION times as long is none: refused before it takes
    the memory."""
    most = max(_SMALL_BYTES, _MOST_EXPANSION * len(data))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole .gz file: {error}") from None
    if len(text) > most:
        raise DataError(
            f"{name} unpacks to more than {_MOST_EXPANSION} times its {format_bytes(len(data))}; is it text?"
        )
    return text


def _lines(data: bytes) -> list[bytes]:
    """Cut at newlines alone: other separators of Unicode may stand inside a sentence."""
    lines = data.split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]


def _paired(files: str, source: list[bytes], target: list[bytes], reasons: dict[int, str]) -> Lines:
    """Decode both sides; what cannot be used keeps its number and gets a reason."""
    digest = hashlib.sha256()
    for column in (source, target):
        digest.update(b"%d\n" % len(column) + b"\n".join(column))
    size = sum(len(line) + 1 for column in (source, target) for line in column)
    shorter, longer = sorted((len(source), len(target)))
    reasons |= dict.fromkeys(range(shorter, longer), f"has no partner: the other file ends after line {shorter}")
    texts: list[list[str]] = []
    for column in (source, target):
        texts.append([])
        for number, line in enumerate(column):
            try:
                texts[-1].append(line.decode("utf-8").strip())
            except UnicodeDecodeError as error:
                texts[-1].append("")
                reasons.setdefault(number, f"is not UTF-8: {error.reason} at byte {error.start + 1}")
            if not texts[-1][-1]:
                reasons.setdefault(number, "is empty")
        texts[-1] += [""] * (longer - len(column))
    return Lines(files, texts[0], texts[1], reasons, size, digest.hexdigest())


def _held_out(lines: Lines, share: float) -> tuple[Lines, Lines]:
    """The same lines every time, at least one; those left to each side are numbered anew."""
    count = len(lines.source)
    dice = uniforms(0, 0, np.arange(count), _HOLDOUT_STREAM, 1)[:, 0]
    chosen = set(np.argsort(dice, kind="stable")[: max(1, round(share * count))].tolist())

    def part(files: str, wanted: bool) -> Lines:
        numbers = [number for number in range(count) if (number in chosen) is wanted]
        source, target = [lines.source[n] for n in numbers], [lines.target[n] for n in numbers]
        size = sum(len(text.encode()) + 1 for text in (*source, *target))
        reasons = {new: lines.reasons[old] for new, old in enumerate(numbers) if old in lines.reasons}
        return Lines(
            files, source, target, reasons, size, hashlib.sha256(f"{lines.digest} {wanted}".encode()).hexdigest()
        )

    return part(lines.files, False), part(f"{lines.files} (held out)", True)


def _vocabulary(train: Lines, config: "DataConfig", run_folder: Path | None) -> Vocabulary:
    kept = run_folder / VOCABULARY_FILE if run_folder is not None else None
    if kept is not None and kept.exists():
        return read_vocabulary(kept)
    usable = (text for number in train.usable() for text in (train.source[number], train.target[number]))
    return stored_vocabulary(usable, train.digest, config.vocabulary)


def _tokenised(lines: Lines, vocabulary: Vocabulary, max_tokens: int, keep_text: bool) -> TextSplit:
    started = time.perf_counter()
    source, target = (Tokens.of(vocabulary.encode(column)) for column in (lines.source, lines.target))
    opened = LoadStats(lines.fetch_seconds, time.perf_counter() - started, bytes_read=lines.bytes)
    reasons = dict(lines.reasons)
    longest = np.maximum(source.lengths, target.lengths)
    for number in np.flatnonzero(longest > max_tokens).tolist():
        reasons.setdefault(number, f"has {longest[number]} tokens, more than data.max_tokens = {max_tokens}")
    failures = {
        number: Failure(number, line_name(lines.files, number), f"line {number + 1} {reason}")
        for number, reason in sorted(reasons.items())
    }
    references = tuple(lines.target) if keep_text else ()
    return TextSplit(lines.files, source, target, failures, references, lines.bytes, lines.digest, opened)
