"""A view of the recipe's own: what is decoded, cropped, resized and augmented, and how."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool

from flatout.config.sections.fields import NotNegative, Positive, Section, Share, Side, ascending, named


class ViewConfig(Section):
    base: str | None = None
    """Shipped view to start from; the other keys change it."""
    crop: Literal["random-resized", "pad", "centre", "raw"] | None = None
    """How the crop is chosen: random-resized, pad (shift by up to `pad` pixels), centre, or raw (none at all)."""
    size: Side | None = None
    """Side of the square result in pixels."""
    sizes: dict[Annotated[int, Field(ge=0)], Side] | None = None
    """Progressive resizing: first epoch -> side in pixels."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Centre crop: share of the short side that is kept."""
    scale: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], Share], AfterValidator(ascending)] | None = None
    """Random resized crop: smallest and largest share of the area."""
    ratio: Annotated[tuple[Positive, Positive], AfterValidator(ascending)] | None = None
    """Random resized crop: smallest and largest width/height."""
    pad: int | None = Field(None, ge=0)
    """Pad-crop: largest shift in pixels."""
    flip: float | None = Field(None, ge=0, le=1)
    """Probability of a horizontal flip."""
    alternate_flip: StrictBool | None = None
    """A coin decides the first epoch's flip of each sample, then it is flipped every other epoch (docs/faster.md)."""
    colour_jitter: tuple[NotNegative, NotNegative, NotNegative] | None = None
    """Largest relative change of brightness, contrast, saturation."""
    trivial_augment: StrictBool | None = None
    """One random operation of random strength for each image (TrivialAugment)."""
    erase: float | None = Field(None, ge=0, le=1)
    """Probability of erasing a random rectangle."""
    mixup: float | None = Field(None, ge=0, le=1)
    """Beta parameter of mixup; 0 is off."""
    cutmix: float | None = Field(None, ge=0, le=1)
    """Beta parameter of cutmix; 0 is off. With mixup too, each pair of neighbours gets one of them."""
    mean: tuple[Share, Share, Share] | None = None
    """Mean of each channel (0..1), subtracted on the device."""
    std: tuple[Positive, Positive, Positive] | None = None
    """Standard deviation of each channel (0..1), divided by on the device."""
    decode: Literal["exact", "scaled"] | None = None
    """exact, or scaled: JPEGs much larger than the result are decoded at 1/2, 1/4 or 1/8 of their size."""
    transform: Annotated[str, named("transforms")] | None = None
    """A function of your own for each sample, after everything else (docs/extend.md)."""
    transform_options: dict[str, Any] = Field({})
    """Arguments of that function."""
