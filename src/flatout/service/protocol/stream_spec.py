"""What determines a stream of batches, as part of a message: every field typed and bounded, no others allowed.

A service opens data and makes batches from these values, so they are all that a job can control.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
"""Unknown fields, values of another type, and floats that are no numbers are refused."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e3)]
NotNegative = Annotated[float, Field(ge=0, le=1e3)]
Side = Annotated[int, Field(ge=1, le=1 << 15)]
Epoch = Annotated[int, Field(ge=0, le=1 << 31)]
ClassName = Annotated[str, Field(max_length=1000)]


class DataSpec(BaseModel):
    """Where the samples are, and which of them: as in a recipe's `data` section."""

    model_config = STRICT
    path: Annotated[str, Field(min_length=1, max_length=4096)]
    classes: Annotated[int, Field(ge=1)] | Annotated[list[ClassName], Field(max_length=100_000)] | None = None
    samples_per_class: Annotated[int, Field(ge=1)] | None = None
    holdout: Annotated[float, Field(gt=0, lt=1)] = 0.1
    cache: Literal["off", "memory", "disk", "auto"] = "off"
    stage: Literal["off", "auto"] = "off"
    split: Annotated[float, Field(gt=0, lt=1)] | None = None
    unlisted: Literal["drop", "refuse"] = "drop"
    label_column: Annotated[str, Field(max_length=1000)] | None = None
    layout: Literal["detect", "folders", "imagenet", "table", "webdataset", "parquet", "mds"] = "folders"
    """A service runs no code that a message names: layouts of the user's own are refused."""


class ViewSpec(BaseModel):
    """The values of a View."""

    model_config = STRICT
    name: Annotated[str, Field(max_length=200)]
    crop: Literal["random-resized", "pad", "centre", "raw"]
    size: Side = 64
    sizes: Annotated[tuple[tuple[Epoch, Side], ...], Field(max_length=1000)] = ()
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    scale: tuple[Share, Share] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    pad: Annotated[int, Field(ge=0, le=1 << 15)] = 0
    flip: Share = 0.0
    alternate_flip: bool = False
    colour_jitter: tuple[NotNegative, NotNegative, NotNegative] = (0.0, 0.0, 0.0)
    trivial_augment: bool = False
    erase: Share = 0.0
    mixup: Share = 0.0
    cutmix: Share = 0.0
    mean: tuple[Share, Share, Share] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    decode: Literal["exact", "scaled"] = "exact"
    transform: Annotated[str, Field(max_length=4096, pattern=r"^(.+:\w+)?$")] = ""
    """Code that a service runs only where its owner allows it (transport/roots.py)."""
    transform_source: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    transform_options: Annotated[str, Field(max_length=1 << 16)] = ""


class StreamSpec(BaseModel):
    """`content` and the fields after it determine the batches; `data` and `split` say where the samples are."""

    model_config = STRICT
    kind: Literal["image-slices"] = "image-slices"
    """An older service, which knows only whole batches (kind "images"), refuses it."""
    data: DataSpec
    split: Literal["train", "val"] = "train"
    content: Digest
    view: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    view_values: ViewSpec
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] = 0
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)]
    shuffle: bool = True
    raw_shape: tuple[Side, Side] | None = None
    rank: Annotated[int, Field(ge=0, lt=1 << 20)] = 0
    world_size: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    whole_batches: bool = False
    min_batch: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    balance: Literal["off", "classes"] = "off"
