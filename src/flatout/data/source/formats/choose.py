"""Which layout a dataset has. `detect` looks at the names first, and reads only what could hold labels."""

import os
import posixpath
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import unquote, urlsplit

from flatout.data.source.class_lists import refuse_empty_classes
from flatout.data.source.formats.arrangement import Arrangement, Listing
from flatout.data.source.formats.imagenet import FLAT_IMAGE, arrange_imagenet, looks_like_imagenet
from flatout.data.source.formats.mds import INDEX, arrange_mds, indexes_of
from flatout.data.source.formats.parquet import arrange_parquet
from flatout.data.source.formats.tables import (
    METADATA,
    LabelTable,
    arrange_tables,
    is_table,
    may_hold_labels,
    object_named,
    read_table,
    tables_of,
)
from flatout.data.source.formats.webdataset import arrange_webdataset, looks_like_webdataset
from flatout.data.source.layouts import BY_FOLDERS, find_layout, holds_images, users_layout
from flatout.data.source.listing import as_table
from flatout.errors import DataError
from flatout.storage import open_checked, open_store
from flatout.storage.archive_file import ArchiveFile
from flatout.storage.local import FolderStore, TarStore
from flatout.storage.members import Archive, MemberStore, Place, open_zip
from flatout.storage.protocol import Entry, Store
from flatout.storage.tar_index import scan_tar

DETECT = "detect"
OBJECT_STORES = ("s3://", "gs://", "az://")
_GZIP = "a compressed archive, and members are read by their offset; decompress it first: gunzip"
_NOT_IN_PLACE = {
    ".tar.gz": _GZIP,
    ".tgz": _GZIP,
    ".arrow": "as save_to_disk of `datasets` writes it; write parquet instead: "
    "load_from_disk(FOLDER)['train'].to_parquet('train.parquet')",
}
_FILES = (".csv", ".tsv", ".jsonl", ".parquet")


def open_source(path: str) -> tuple[Store, str | None]:
    """The store at a path or URL; for a table, that of its folder, and the table's name in it."""
    lower, remote = path.lower(), path.startswith(OBJECT_STORES)
    local = unquote(urlsplit(path).path) if path.startswith("file://") else os.path.expanduser(path)
    if lower.endswith(_FILES) and (remote or os.path.isfile(local)):
        folder, name = path.rpartition("/")[::2] if remote else os.path.split(local)
        return open_checked(folder or "."), name
    if remote and lower.endswith((".zip", ".tar")):
        folder, _, name = path.rpartition("/")
        return _remote_archive(open_store(folder), name, path), None
    return open_checked(path), None


def _remote_archive(base: Store, name: str, path: str) -> Store:
    entry = next((entry for entry in base.entries() if entry.name == name), None)
    if entry is None:
        raise DataError(f"{path} is not there; check the address")
    if name.lower().endswith(".zip"):
        return open_zip(base, name, entry.bytes, entry.locator)
    file = ArchiveFile(base, name, entry.bytes)
    found = scan_tar(file.where, file.read_at, file.size)
    table = {each: Place(0, offset, size, size) for each, (offset, size) in found.items()}
    return MemberStore(base, (Archive(name, entry.bytes, entry.locator),), table, url=path)


def arrange(listing: Listing, layout: str, whole: bool = True) -> Arrangement:
    """The samples of a dataset by the layout of that name, the user's own, or (detect) the one that it has. `whole`
    refuses folders of classes that are empty, which an audit only names."""
    if layout != DETECT and layout not in _ARRANGE:
        found = users_layout(layout, listing.entries, listing.names_text, listing.where)
        return Arrangement(listing.store, listing.entries, found)
    kind = _found(listing) if layout == DETECT else layout
    if kind == BY_FOLDERS:
        _refuse_others(listing)
    arranged = _ARRANGE[kind](listing)
    arranged.kind = kind
    if kind == BY_FOLDERS and whole:
        refuse_empty_classes(listing.store, arranged.layout, listing.where)
    return arranged


def _found(listing: Listing) -> str:
    """The layout that the names speak for; folders where nothing else is certain."""
    if listing.only is not None:
        return "parquet" if listing.only.lower().endswith(".parquet") else "table"
    visible = listing.visible()
    flat = [name for name in visible if FLAT_IMAGE in name]
    if not listing.telling and not flat:
        return BY_FOLDERS
    if looks_like_imagenet([*listing.telling, *flat], visible):
        return "imagenet"
    endings = {posixpath.splitext(name)[1].lower() for name in listing.telling}
    if indexes_of(listing) and (".mds" in endings or any(".mds." in name for name in visible)):
        return "mds"
    if endings & {".parquet", ".tar"} and not _has_images(visible):
        return "parquet" if ".parquet" in endings else "webdataset"
    if isinstance(listing.store, TarStore | MemberStore) and looks_like_webdataset(visible):
        return "webdataset"
    return "table" if _labels_in_tables(listing) else BY_FOLDERS


def _refuse_others(listing: Listing) -> None:
    """What people have and nobody can read in place, where there are no images beside it."""
    if _has_images(listing.entries):
        return
    for ending, what in _NOT_IN_PLACE.items():
        name = next((each for each in listing.entries if each.lower().endswith(ending)), None)
        if name is not None:
            raise DataError(f"{listing.where} holds {name}, {what}")


def _has_images(names: Iterable[str]) -> bool:
    return any(holds_images([name]) and "." in posixpath.basename(name) for name in names)


def _labels_in_tables(listing: Listing) -> bool:
    """Whether a table says the classes: of two answers that differ, neither is taken."""
    possible = _with_labels(listing)
    tables = _usable(listing, possible)
    if any(posixpath.basename(table.name) in METADATA for table in tables):
        return True
    if not possible:
        return False
    try:
        folders = find_layout(listing.entries.visible, listing.names_text, listing.where).splits["train"]
    except DataError:
        folders = {}
    if len(folders) < 2:
        return True  # also where it names files that are not there: that is then said
    if not tables:
        return False
    by_table = arrange_tables(listing, tables).layout.splits["train"]
    class_of = {name: label for label, members in folders.items() for name in members}
    if all(class_of.get(name) in (label, None) for label, members in by_table.items() for name in members):
        return False
    raise DataError(
        f"{listing.where} has {len(folders)} folders such as {min(folders)!r}, and {tables[0].name} with other "
        "labels; say which is meant with data.layout=folders or data.layout=table"
    )


def _with_labels(listing: Listing) -> list[LabelTable]:
    """Tables that name files and their classes."""
    names = [name for name in tables_of(listing) if name in listing.entries and may_hold_labels(listing, name)]
    tables = [read_table(listing, name) for name in names]
    return [table for table in tables if table.usable and table.rows]


def _usable(listing: Listing, tables: Iterable[LabelTable]) -> list[LabelTable]:
    """Those that name files which are there."""

    def names_files(table: LabelTable) -> bool:
        folder, column = posixpath.dirname(table.name), table.path_column or ""
        return any(object_named(listing, folder, row.get(column, "")) is not None for row in table.rows[:20])

    return list(filter(names_files, tables))


def _by_folders(listing: Listing) -> Arrangement:
    layout = find_layout(listing.entries.visible, listing.names_text, listing.where)
    notes = tuple(f"{name}/ in {listing.where} holds no images and is no class" for name in layout.without_images)
    return Arrangement(listing.store, listing.entries, layout, notes)


def _by_tables(listing: Listing) -> Arrangement:
    names = tables_of(listing)
    if not names or not all(is_table(name) and name in listing.entries for name in names):
        raise DataError(f"{listing.where} holds no table of labels; put a .csv, .tsv or metadata.jsonl there")
    possible = _with_labels(listing)
    return arrange_tables(listing, _usable(listing, possible) or possible or [read_table(listing, names[0])])


def _by_shards(listing: Listing) -> Arrangement:
    """Of a folder of tars; or of the one tar that data.path points at."""
    store = listing.store
    single = isinstance(store, TarStore) or (isinstance(store, MemberStore) and len(store.archives) == 1)
    shards = listing.archives(".tar")
    if not shards and single:
        return arrange_webdataset(*_as_shard(listing))
    if not shards:
        raise DataError(f"{listing.where} holds no .tar; a WebDataset is a folder of them")
    return arrange_webdataset(listing, shards)


def _as_shard(listing: Listing) -> tuple[Listing, list[str]]:
    """The tar itself as the one object of its folder."""
    store = listing.store
    if isinstance(store, MemberStore):
        base, (name, size, locator) = store.base, store.archives[0]
        entry = Entry(name, size, locator)
    else:
        assert isinstance(store, TarStore)
        base = FolderStore(os.path.dirname(os.path.abspath(store.path)))
        entry = base.entry(os.path.basename(store.path))
    beside = {name: base_entry for name, base_entry in _class_lists(base).items() if base_entry is not None}
    found = as_table({entry.name: entry, **beside}.values())
    return Listing(base, found, listing.where, listing.label_column), [entry.name]


def _class_lists(base: Store) -> dict[str, Entry | None]:
    from flatout.data.source.formats.numbered import CLASS_LISTS

    if not isinstance(base, FolderStore):
        return {}
    paths = {name: base.local_path(name) for name in CLASS_LISTS}
    return {name: base.entry(name) for name, path in paths.items() if path and os.path.isfile(path)}


def _by_parquet(listing: Listing) -> Arrangement:
    files = listing.archives(".parquet")
    if not files or any(name not in listing.entries for name in files):
        raise DataError(f"{listing.where} holds no .parquet")
    return arrange_parquet(listing, files)


def _by_mds(listing: Listing) -> Arrangement:
    indexes = indexes_of(listing)
    if not indexes:
        raise DataError(f"{listing.where} holds no {INDEX} of MDS shards, nor train/{INDEX}")
    return arrange_mds(listing, indexes)


_ARRANGE: Mapping[str, Callable[[Listing], Arrangement]] = {
    BY_FOLDERS: _by_folders,
    "imagenet": arrange_imagenet,
    "table": _by_tables,
    "webdataset": _by_shards,
    "parquet": _by_parquet,
    "mds": _by_mds,
}
