"""Classes that a dataset knows as numbers, and the list that may come with it."""

from collections.abc import Callable, Iterable, Sequence

from flatout.data.source.class_lists import parse_names
from flatout.data.source.formats.arrangement import Listing
from flatout.errors import DataError

CLASS_LISTS = ("classes.txt", "classes.json", "labels.txt")
_MAX_CLASSES = 1_000_000
_MOST_DIGITS = 18


def number_of(text: str) -> int | None:
    """The class that a word is the number of; None for other words, and for too many digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def listed_classes(listing: Listing) -> tuple[str, list[str] | None]:
    """The file beside the samples that names the classes in order of their numbers, and what it says; no name and None
    where there is none."""
    name = next((each for each in CLASS_LISTS if each in listing.entries), None)
    if name is None:
        return "", None
    classes = parse_names(listing.text(name), name)
    if classes is None:
        raise DataError(f"{name} of {listing.where} is not a JSON list of class names; write one")
    if len(set(classes)) != len(classes):
        twice = next(each for each in classes if classes.count(each) > 1)
        raise DataError(f"{name} of {listing.where} names the class {twice!r} twice; keep one of them")
    return name, classes


def class_names(numbers: Iterable[int], names: Sequence[str] | None, source: str, where: str) -> Callable[[int], str]:
    """What a number is called: by the list, or itself, with zeros before it so that the order of names is that of the
    numbers."""
    numbers = set(numbers)
    lowest, highest = min(numbers, default=0), max(numbers, default=0)
    if names is not None:
        if lowest < 0 or highest >= len(names):
            wrong = lowest if lowest < 0 else highest
            raise DataError(f"a sample of {where} has the class {wrong}, but {source} names {len(names)}, from 0 on")
        return lambda number: names[number]
    if lowest < 0 or highest >= _MAX_CLASSES:
        raise DataError(
            f"a sample of {where} has the class {lowest if lowest < 0 else highest}; classes are numbered from 0 on, "
            "and samples without one must be left out"
        )
    width = len(str(highest))
    return lambda number: f"{number:0{width}d}"
