"""Labels in a table: CSV or TSV with a header, and the metadata files of Hugging Face's image folders.

Columns go by their names, in any order: the file, its label, and (if there is one) its split. The sample's name is the
file's, so that a table over folders of classes gives the batches of those folders.
"""

import csv
import io
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flatout.data.source.formats.arrangement import Arrangement, Listing, split_in_name, split_of
from flatout.data.source.layouts import Layout, holds_images
from flatout.errors import BadFile, DataError
from flatout.untrusted import parse_json

PATH_COLUMNS = ("path", "file_name", "filename", "file", "filepath", "file_path", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "class_name", "label_name", "category", "target")
SPLIT_COLUMNS = ("split", "subset", "fold")
METADATA = ("metadata.jsonl", "metadata.csv")
_TABLES = (".csv", ".tsv", ".jsonl")
_SHOWN = 60  # characters of a value


@dataclass
class Row:
    """A line of a table: which file, of which class."""

    line: int
    path: str
    label: str
    split: str | None


@dataclass
class LabelTable:
    """One file of labels."""

    name: str
    columns: tuple[str, ...]
    path_column: str | None
    label_column: str | None
    rows: Sequence[dict[str, str]] = field(repr=False, default=())
    lines: Sequence[int] = field(repr=False, default=())

    @property
    def usable(self) -> bool:
        return self.path_column is not None and self.label_column is not None


def is_table(name: str) -> bool:
    return name.lower().endswith(_TABLES)


def tables_of(listing: Listing) -> list[str]:
    """Tables that may hold labels: the one asked for, else metadata files, else those beside the folders."""
    if listing.only is not None:
        return [listing.only]
    names = sorted(filter(is_table, listing.telling))
    metadata = [name for name in names if name.rsplit("/", 1)[-1] in METADATA and name.count("/") <= 1]
    return metadata or [name for name in names if "/" not in name]


def read_table(listing: Listing, name: str) -> LabelTable:
    """The rows of a table as texts by column; every line has all of them."""
    text = listing.text(name)
    read = _json_rows if name.lower().endswith(".jsonl") else _csv_rows
    rows, lines = [], []
    columns: tuple[str, ...] = ()
    for line, row in read(text, name):
        columns = columns or tuple(row)
        rows.append(row)
        lines.append(line)
    label = listing.label_column
    path = _column(columns, PATH_COLUMNS)
    chosen = (label if label in columns else None) if label else _column(columns, LABEL_COLUMNS)
    return LabelTable(name, columns, path, chosen, rows, lines)


def may_hold_labels(listing: Listing, name: str) -> bool:
    """By its first line alone: a file of other figures may be beside the classes, and be no table at all."""
    first = listing.names_text(name).partition("\n")[0].lower()
    words = {word.strip().strip('"') for word in re.split(r"[,;\t{}:]", first)}
    labels = [listing.label_column.lower()] if listing.label_column else LABEL_COLUMNS
    return not words.isdisjoint(PATH_COLUMNS) and not words.isdisjoint(labels)


def _column(columns: Sequence[str], known: Sequence[str]) -> str | None:
    by_name = {name.strip().lower(): name for name in columns}
    return next((by_name[name] for name in known if name in by_name), None)


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    first = text.partition("\n")[0]
    delimiter = "\t" if name.lower().endswith(".tsv") else max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [each.strip() for each in next(reader, [])]
        if len(set(header)) != len(header):
            raise DataError(f"{name} has a column twice: {', '.join(header)[:_SHOWN]}; rename one")
        for row in reader:
            if len(row) == len(header):
                yield reader.line_num, dict(zip(header, row, strict=True))
            elif row:
                raise DataError(
                    f"{name} line {reader.line_num} has {len(row)} values but the header {len(header)}: "
                    f"{delimiter.join(row)[:_SHOWN]!r}; put values with a {delimiter!r} in double quotes"
                )
    except csv.Error as error:
        raise DataError(f"{name} line {reader.line_num} cannot be read: {error}; check its quotes") from None


def _json_rows(text: str, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, name)
        except BadFile:
            row = None
        if not isinstance(row, dict):
            raise DataError(f"{name} line {number} is {line[:_SHOWN]!r}; expected one JSON object on each line")
        yield number, {key: _as_text(value) for key, value in row.items()}


def _as_text(value: object) -> str:
    if isinstance(value, list):
        return ";".join(str(each) for each in value)
    return "" if value is None else str(value)


def arrange_tables(listing: Listing, tables: Sequence[LabelTable]) -> Arrangement:
    """The samples that usable tables name; what a table names and is not there, or names twice, is an error."""
    layout, left_out = Layout(""), 0
    seen: dict[str, int] = {}
    rows = [(table, row) for table in tables for row in _rows(listing, table)]
    tested = {row.split for _, row in rows if row.split}
    for table, row in rows:
        if row.path in seen:
            raise DataError(
                f"{table.name} line {row.line} names {row.path!r} a second time (first in line {seen[row.path]}); "
                "keep one of them: each sample is used once"
            )
        seen[row.path] = row.line
        split = "train" if row.split is None else split_of(row.split)
        if row.split == "test" and tested & {"val", "valid", "validation", "dev"}:
            left_out += 1
        elif split is None:
            raise DataError(f"{table.name} line {row.line} has the split {row.split!r}; use train, val or test")
        else:
            layout.splits.setdefault(split, {}).setdefault(row.label, []).append(row.path)
    if not layout.splits.get("train"):
        names = ", ".join(table.name for table in tables)
        raise DataError(f"{names} of {listing.where} names no training samples; give some the split train")
    return Arrangement(listing.store, listing.entries, layout, _notes(listing, tables, seen, left_out))


def _notes(listing: Listing, tables: Sequence[LabelTable], seen: dict[str, int], left_out: int) -> tuple[str, ...]:
    unused = sum(1 for name in listing.visible() if name not in seen and holds_images([name]) and not is_table(name))
    names = ", ".join(table.name for table in tables)
    notes = [f"labels of {listing.where} from {names}: {len(seen) - left_out} samples"]
    notes += [f"{unused} images of {listing.where} are in no line of {names} and not used"] if unused else []
    notes += [f"{left_out} samples of the split test are left out: val is used for validation"] if left_out else []
    return tuple(notes)


def _rows(listing: Listing, table: LabelTable) -> Iterator[Row]:
    _require_columns(listing, table)
    assert table.path_column is not None
    assert table.label_column is not None
    folder = posixpath.dirname(table.name)
    split_column = _column(table.columns, SPLIT_COLUMNS)
    own = split_in_name(table.name)
    for line, row in zip(table.lines, table.rows, strict=True):
        path, label = row.get(table.path_column, ""), row.get(table.label_column, "").strip()
        if not label:
            raise DataError(f"{table.name} line {line} has no {table.label_column}; give it one or remove the line")
        split = row.get(split_column, "").strip().lower() if split_column else ""
        yield Row(line, _found(listing, table, line, folder, path), label, split or own)


def object_named(listing: Listing, folder: str, path: str) -> str | None:
    """The object that a line means: relative to the table in `folder`, or by its whole path on this machine."""
    root = listing.store.local_path("")
    inside = None if root is None else path.removeprefix(os.path.join(os.path.abspath(root), ""))
    relative = [posixpath.join(folder, each) for each in (path, path.replace("\\", "/")) if each.strip()]
    names = (posixpath.normpath(each) for each in [*relative, *([inside] if inside else [])])
    return next((name for name in names if name in listing.entries), None)


def _found(listing: Listing, table: LabelTable, line: int, folder: str, path: str) -> str:
    found = object_named(listing, folder, path)
    if found is not None:
        return found
    if path.startswith("/") or ".." in path.split("/"):
        raise DataError(
            f"{table.name} line {line} names {path[:_SHOWN]!r}, which leads out of {listing.where}; put the table into "
            "a folder above the files, and name them relative to it"
        )
    raise DataError(
        f"{table.name} line {line} names {path[:_SHOWN]!r}, which is not in {listing.where}; paths are relative to the "
        "table, with their ending"
    )


def _require_columns(listing: Listing, table: LabelTable) -> None:
    seen = ", ".join(table.columns)[:200] or "nothing"
    if not table.rows:
        raise DataError(f"{table.name} of {listing.where} has no rows below its header; is it another file?")
    if table.path_column is None:
        raise DataError(
            f"{table.name} of {listing.where} has the columns {seen}, and none of the file: call it path "
            "(the first line must be the header)"
        )
    if table.label_column is None and listing.label_column:
        raise DataError(
            f"data.label_column is {listing.label_column!r}, but {table.name} of {listing.where} has the columns {seen}"
        )
    if table.label_column is None:
        raise DataError(
            f"{table.name} of {listing.where} has the columns {seen}, and none of the label: call it label, or name it "
            "with data.label_column"
        )
