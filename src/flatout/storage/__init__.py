"""Local and object stores behind one small protocol: `open_store(url)` gives a Store for any of them.

Light to import: obstore is loaded when an object store is first used.
"""

import os
from dataclasses import fields
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from flatout import plugins
from flatout.errors import ConfigError, DataError
from flatout.storage.protocol import Checked, Entry, Range, Store, StoreOpener

__all__ = ["Entry", "Range", "Store", "open_checked", "open_store"]

_OBJECT_SCHEMES = ("s3", "gs", "az")
_COMPRESSED_TARS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def open_store(url: str, **options: Any) -> Store:
    """The store at a path, a file:// URL, a .tar, a .zip, or s3://, gs://, az://. Nothing is read yet.

    Options are those of ReadOptions (max_in_flight, deadline_seconds, ...) and, for object stores, obstore's own
    (endpoint, region, access_key_id, skip_signature, ...).
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _OBJECT_SCHEMES:
        return _open_object_store(url, options)
    if separator and scheme in plugins.installed("stores"):
        key = f"data at {scheme}://"
        opener = cast(StoreOpener, plugins.load("stores", scheme, key))
        with plugins.blamed(key):
            return opener(url, **options)
    if separator and scheme != "file":
        raise DataError(
            f"data at {scheme}:// cannot be read; use a path, file://, s3://, gs:// or az://, "
            f"or install a package that offers {scheme} as an entry point of flatout.stores"
        )
    if options:
        raise ConfigError(
            f"store options {', '.join(sorted(options))} have no meaning for the local path {url!r}; remove them"
        )
    return _open_path(unquote(urlsplit(url).path) if separator else os.path.expanduser(url))


def open_checked(url: str, **options: Any) -> Store:
    """The store, once it is sure that it is there, may be listed and holds something."""
    store = open_store(url, **options)
    if isinstance(store, Checked):
        store.check()
    return store


def _open_object_store(url: str, options: dict[str, Any]) -> Store:
    from flatout.storage.client import parse_address
    from flatout.storage.connection import ReadOptions
    from flatout.storage.object_store import ObjectStore

    parse_address(url)
    if url.endswith((".tar", *_COMPRESSED_TARS)):
        raise DataError(
            f"{url} is a tar in an object store, which cannot be read piece by piece; copy it here, or upload its "
            "folder or a pack of it (flatout data pack)"
        )
    own = {field.name for field in fields(ReadOptions)} & options.keys()
    reading = ReadOptions(**{name: options[name] for name in own})
    return ObjectStore(url, {name: value for name, value in options.items() if name not in own}, reading)


def _open_path(path: str) -> Store:
    from flatout.storage.local import FolderStore, TarStore

    if os.path.isdir(path):
        return FolderStore(path)
    if os.path.isfile(path) and path.endswith((".tar", *_COMPRESSED_TARS)):
        return TarStore(path)
    if os.path.isfile(path) and path.lower().endswith(".zip"):
        from flatout.storage.members import open_local_zip

        return open_local_zip(path)
    if os.path.exists(path):
        raise DataError(
            f"{path} is a file of unknown kind; give a folder, an uncompressed .tar, a .zip, a table (.csv, .tsv, "
            ".jsonl, .parquet) or a URL"
        )
    raise DataError(
        f"{path} does not exist; check the path, or make a dataset there with: flatout data make shapes {path}"
    )
