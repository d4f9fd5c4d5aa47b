"""Views: named, versioned recipes of decode + crop + resize + augment."""

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from flatout.data.pixels.decode import PILLOW_13, RESIZES_BY_TORCH
from flatout.errors import ConfigError
from flatout.plugins import reference, source_digest

if TYPE_CHECKING:  # pydantic costs a worker half of its start, and it only needs what was resolved
    from flatout.config.schema import ViewConfig

VERSION = 1  # raised whenever the same draws would give other pixels


@dataclass(frozen=True)
class View:
    """Every value that decides the pixels of a sample; see ViewConfig for what each means."""

    name: str
    crop: str  # random-resized | pad | centre | raw
    size: int = 64
    sizes: tuple[tuple[int, int], ...] = ()
    fraction: float = 1.0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 0
    flip: float = 0.0
    alternate_flip: bool = False
    colour_jitter: tuple[float, float, float] = (0.0, 0.0, 0.0)
    trivial_augment: bool = False
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    decode: str = "exact"  # exact | scaled
    transform: str = ""  # of the user's own, by its name
    transform_source: str = ""  # digest of its text, which is what every process that makes pixels must find
    transform_options: str = ""  # as JSON

    def __post_init__(self) -> None:
        if self.transform and not self.transform_source:
            found = source_digest("transforms", self.transform, f"views.{self.name}.transform")
            object.__setattr__(self, "transform_source", found)
        if self.decode == "scaled" and self.crop == "raw":
            raise ConfigError(
                f"view {self.name!r} has decode: scaled but crop: raw, which shows whole images at their own size; "
                "use decode: exact"
            )
        if self.alternate_flip and self.flip != 0.5:
            raise ConfigError(
                f"view {self.name!r} has alternate_flip but flip: {self.flip:g}; each sample is flipped in every other "
                "epoch, which is flip: 0.5"
            )

    def side(self, epoch: int) -> int:
        """Side of the result in pixels in one epoch (progressive resizing)."""
        return next((size for first, size in reversed(self.sizes) if epoch >= first), self.size)

    @property
    def random(self) -> bool:
        """Whether the pixels depend on seed and epoch."""
        return (
            self.crop in ("random-resized", "pad")
            or bool(self.transform)
            or self
            != replace(
                self,
                flip=0.0,
                alternate_flip=False,
                colour_jitter=(0.0, 0.0, 0.0),
                trivial_augment=False,
                erase=0.0,
                mixup=0.0,
                cutmix=0.0,
            )
        )

    @property
    def resizes_by_torch(self) -> bool:
        """Colour operations would turn a difference of 1 into a larger one: views that have any stay with Pillow."""
        return RESIZES_BY_TORCH and not any(self.colour_jitter) and not self.trivial_augment

    def elsewhere(self) -> dict[str, Any]:
        """Its values for a process that was started in another folder."""
        values = asdict(self)
        if self.transform:
            values["transform"] = reference("transforms", self.transform, f"views.{self.name}.transform")
        return values

    def digest(self) -> str:
        """Identifies the pixels: the name and the normalisation on the device do not count."""
        values = {key: value for key, value in asdict(self).items() if key not in ("name", "mean", "std")}
        if self.decode == "exact":
            del values["decode"]  # as before there was a choice
        if not self.alternate_flip:
            del values["alternate_flip"]
        own = [values.pop(key) for key in ("transform", "transform_source", "transform_options")]
        if self.transform:
            function = reference("transforms", self.transform, f"views.{self.name}.transform").rpartition(":")[2]
            values["transform"] = [function, *own[1:]]
        resize = [13 if PILLOW_13 else 12, *(["torch"] if self.resizes_by_torch else [])]
        return hashlib.sha256(json.dumps([VERSION, *resize, values], sort_keys=True).encode()).hexdigest()[:16]


SHIPPED = {
    view.name: view
    for view in (
        View("train-224", crop="random-resized", size=224, flip=0.5),
        View("eval-224", crop="centre", size=224, fraction=224 / 256),
        View("train-64", crop="pad", size=64, pad=4, flip=0.5),
        View("eval-64", crop="centre", size=64),
        View("raw", crop="raw"),
    )
}


def resolve_view(name: str, configured: "Mapping[str, ViewConfig] | None" = None) -> View:
    """A shipped view, or one from the configuration's `views`."""
    recipe = (configured or {}).get(name)
    if recipe is not None:
        return _from_config(name, recipe)
    if name in SHIPPED:
        return SHIPPED[name]
    known = [*SHIPPED, *(configured or {})]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    raise ConfigError(f"unknown view {name!r}; {hint} (more views can be defined under views: in the recipe)")


def _from_config(name: str, recipe: "ViewConfig") -> View:
    left_out = {"base", "sizes", "transform_options"}
    values: dict[str, Any] = {
        key: value for key, value in recipe.model_dump(exclude=left_out).items() if value is not None
    }
    if recipe.transform is not None:
        values["transform_options"] = _as_json(recipe.transform_options, f"views.{name}.transform_options")
    if recipe.sizes is not None:
        values["sizes"] = tuple(sorted(recipe.sizes.items()))
    if not recipe.base and "crop" not in values:
        raise ConfigError(f"view {name!r} has neither base nor crop; set views.{name}.base to one of {list(SHIPPED)}")
    base = resolve_view(recipe.base) if recipe.base else View(name, crop=values["crop"])
    return replace(base, **{**values, "name": name})


def _as_json(options: dict[str, Any], key: str) -> str:
    try:
        return json.dumps(options, sort_keys=True, allow_nan=False) if options else ""
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key} is {options!r}: {error}; options are numbers, texts, lists and mappings") from None
