"""WebDataset shards: tars in which the files of one sample follow each other and share a name up to its first dot.

The image is the one member that looks like one; its class is in `.cls` (a number, or a name), or in `.json`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flatout.data.source.formats.arrangement import Arrangement, Listing, Members, OpenArchive, split_in_name
from flatout.data.source.formats.numbered import class_names, listed_classes, number_of
from flatout.data.source.formats.tables import LABEL_COLUMNS
from flatout.data.source.layouts import Layout
from flatout.errors import BadFile, DataError
from flatout.untrusted import parse_json

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
LABELS = ("cls", "cls.txt", "txt.cls")
_MAX_LABEL_BYTES = 2**20
Place = tuple[int, int]


@dataclass
class Sample:
    key: str
    parts: dict[str, tuple[str, Place]] = field(default_factory=dict)  # ending -> member and place
    name: str = ""
    label: str = ""

    @property
    def image(self) -> tuple[str, Place] | None:
        endings = [each for each in self.parts if each.rsplit(".", 1)[-1] in IMAGES]
        return self.parts[endings[0]] if len(endings) == 1 else None


def looks_like_webdataset(names: Iterable[str]) -> bool:
    """Members of a tar: labels beside images of the same key."""
    keys = {name.rsplit(".", 1)[0] for name in names if name.rsplit(".", 1)[-1].lower() in IMAGES}
    labelled = (name for name in names if name.lower().endswith((".cls", ".json")))
    return any(_key_of(name)[0] in keys for name in labelled)


def arrange_webdataset(listing: Listing, shards: list[str]) -> Arrangement:
    members, splits = Members(listing), {name: split_in_name(name) for name in shards}
    opened = members.opened(shards)
    samples = [
        (splits[shard] or "train", shard, archive, sample)
        for shard, (archive, inside) in zip(shards, opened, strict=True)
        for sample in _samples(archive, inside, listing.label_column)
    ]
    source, names = listed_classes(listing)
    numbers = [number for *_, sample in samples if (number := number_of(sample.label)) is not None]
    numeric = len(numbers) == len(samples)
    call = class_names(numbers, names, source, listing.where) if numeric else None
    if names is not None and not numeric:
        _refuse_unlisted({sample.label for *_, sample in samples}, names, source, listing.where)
    layout, keep = Layout(""), _are_unique(samples)
    for split, shard, archive, sample in samples:
        image = sample.image
        assert image is not None
        prefix = f"{split}/" if splits[shard] and not sample.name.startswith(f"{split}/") else ""
        stem = "" if keep else f"{shard.rsplit('/', 1)[-1].rsplit('.', 1)[0]}/"
        name = f"{prefix}{stem}{sample.name}"
        members.put(name, archive, *image[1])
        label = call(int(sample.label)) if call else sample.label
        layout.splits.setdefault(split, {}).setdefault(label, []).append(name)
    if not layout.splits.get("train"):
        raise DataError(f"{listing.where} has no training samples in its {len(shards)} shards; name some train-*.tar")
    return members.arranged(layout, (f"{listing.where}: {len(samples)} samples of {len(shards)} WebDataset shards",))


def _are_unique(samples: list[tuple[str, str, OpenArchive, Sample]]) -> bool:
    """Whether names need no shard before them."""
    return len({(split, sample.name) for split, _, _, sample in samples}) == len(samples)


def _refuse_unlisted(labels: set[str], names: list[str], source: str, where: str) -> None:
    unlisted = sorted(labels - set(names))
    if unlisted:
        raise DataError(
            f"{where} has samples of {len(unlisted)} classes that {source} does not name, such as {unlisted[0]!r}"
        )


def _key_of(name: str) -> tuple[str, str]:
    """Key and ending of a member: cut at the first dot of its last part."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return folder + slash + stem, ending.lower()


def _samples(archive: OpenArchive, inside: dict[str, Place], column: str | None) -> Iterator[Sample]:
    where = archive.file.where
    groups: dict[str, Sample] = {}
    for member, place in inside.items():
        key, ending = _key_of(member)
        groups.setdefault(key, Sample(key)).parts[ending] = (member, place)
    for sample in groups.values():
        image = sample.image
        if image is None:
            if sample.key.rsplit("/", 1)[-1].startswith(("__", ".")) or not sample.parts.keys() & {*LABELS, "json"}:
                continue  # not a sample: a README, or what a tool keeps of itself
            raise DataError(
                f"{where}: the sample {sample.key!r} has {', '.join(sorted(sample.parts))}, and not one image"
            )
        _read_label(archive, sample, column, where)
        sample.name = sample.name or image[0]
        yield sample


def _read_label(archive: OpenArchive, sample: Sample, column: str | None, where: str) -> None:
    values = _json(archive, sample, where) if "json" in sample.parts else {}
    label = next((_text(archive, sample, each, where) for each in LABELS if each in sample.parts), None)
    if column is not None or label is None:
        wanted = [column] if column is not None else list(LABEL_COLUMNS)
        found = next((values[each] for each in wanted if each in values), None)
        label = str(found) if isinstance(found, str | int) and not isinstance(found, bool) else None
    if not label:
        has = ", ".join(sorted(sample.parts)) + (f" with {', '.join(values)}"[:80] if values else "")
        raise DataError(
            f"{where}: the sample {sample.key!r} has no class: it has {has}; expected .cls, or .json with label"
            f"{'' if column is None else f' (data.label_column is {column!r})'}"
        )
    sample.label = label
    name = values.get("name")
    sample.name = name if isinstance(name, str) and _is_safe(name) else ""


def _is_safe(name: str) -> bool:
    return 0 < len(name) < 4096 and not name.startswith("/") and ".." not in name.split("/") and "\0" not in name


def _text(archive: OpenArchive, sample: Sample, ending: str, where: str) -> str:
    member, (offset, size) = sample.parts[ending]
    if size > _MAX_LABEL_BYTES:
        raise DataError(f"{where}: {member!r} has {size} bytes, limit {_MAX_LABEL_BYTES}; it holds no class")
    try:
        return archive.read(offset, size).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise DataError(f"{where}: {member!r} is not text; expected a class") from None


def _json(archive: OpenArchive, sample: Sample, where: str) -> dict[str, object]:
    try:
        values = parse_json(_text(archive, sample, "json", where), where)
    except BadFile:
        values = None
    if not isinstance(values, dict):
        raise DataError(f"{where}: {sample.parts['json'][0]!r} is not a JSON object; expected one with label")
    return values
