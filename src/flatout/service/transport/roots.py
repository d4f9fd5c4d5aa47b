"""Which data a service opens for others, and whose code it runs: only what its owner has allowed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from flatout.errors import ConfigError, DataError
from flatout.service.protocol.stream_spec import ViewSpec
from flatout.storage.client import parse_address


@dataclass(frozen=True)
class AllowedCode:
    """By digest of its source: a name proves nothing, and the file behind it may change.

    Producers load only a text with the digest that the view says (plugins.load).
    """

    anything: bool = False
    """For the service that a job starts for its own user: whoever reaches its socket can run programs as that user."""
    digests: frozenset[str] = frozenset()

    def refusal(self, view: ViewSpec) -> str | None:
        """Why batches of this view are not made here; None where they may be."""
        if not view.transform or self.anything or view.transform_source in self.digests:
            return None
        return (
            f"the service does not run {view.transform[:500]}, source {view.transform_source[:8]}, which its owner has "
            "not allowed; start it with --code FILE"
        )


NO_CODE = AllowedCode()


@dataclass(frozen=True)
class DataRoots:
    """Folders and prefixes of object stores, as `located` gives them."""

    roots: tuple[tuple[str, ...], ...]

    def resolved(self, path: str) -> str | None:
        """The path to open: `path` without links and `..`; None where no root holds it."""
        try:
            place = located(path)
        except DataError:
            return None
        if not any(place[: len(root)] == root for root in self.roots):
            return None
        return "/".join(place[1:]) or "/" if place[0] == "file" else f"{place[0]}://{'/'.join(place[1:])}"


def allowed_roots(paths: Sequence[str]) -> DataRoots:
    """From the values of --data; one that cannot be a root is a ConfigError."""
    try:
        return DataRoots(tuple(located(path) for path in paths))
    except DataError as error:
        raise ConfigError(f"--data: {error}") from None


def located(path: str) -> tuple[str, ...]:
    """The parts of a place, such that one is under another exactly if it begins with the other's parts.

    Addresses are read as `open_store` reads them: a path or file:// is local, and links in it are followed now. The
    prefix of s3://, gs:// and az:// is taken literally, so one with empty parts, `.` or `..` is refused.
    """
    scheme, separator, _ = path.partition("://")
    if not separator or scheme == "file":
        local = unquote(urlsplit(path).path) if separator else os.path.expanduser(path)
        if "\0" in local:
            raise DataError("a path with a zero byte in it is none")
        real = os.path.realpath(local)
        return ("file", *([""] if real == "/" else real.split("/")))
    address = parse_address(path)
    parts = tuple(address.prefix.split("/")) if address.prefix else ()
    if any(part in ("", ".", "..") for part in parts):
        raise DataError(f"{path!r} has empty parts, . or .. in it, which object stores do not resolve")
    return (address.scheme, address.bucket, *parts)
