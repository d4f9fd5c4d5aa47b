"""What is trained."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from flatout.config.sections.fields import Section

RESNETS = ("resnet18", "resnet34", "resnet50")  # our own
TRANSFORMERS = ("transformer-small", "transformer-base")  # our own


class ModelConfig(Section):
    name: str = "resnet18"
    """resnet18, resnet34, resnet50, timm:NAME or torchvision:NAME; transformer-small or transformer-base; or a model of
    your own: package.module:Name, ./file.py:Name, or an entry point of flatout.models."""
    options: dict[str, Any] = Field({})
    """Arguments of a model of your own, besides `classes`."""
    weights: str | None = Field(None, min_length=1)
    """Where the first weights come from: a .safetensors, .pth or .pt file, run:DIR, timm or torchvision."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Names of parts that are not trained, such as layer1 or *.bias; !fc.* takes out what one before has put in. Batch
    norms in them keep their statistics."""
    freeze_from: dict[Annotated[int, Field(ge=1)], tuple[Annotated[str, Field(min_length=1)], ...]] = Field({})
    """Epoch (from 0) -> names of parts that are no longer trained from it on; the first layers, so that backward ends
    before them."""
    stem: Literal["standard", "small", "patch"] = "small"
    """standard: 7x7 stride 2 and max-pool; small: 3x3 stride 1, for images of 32-64 pixels; patch: 4x4 stride 4."""
    width: float = Field(1.0, gt=0, le=8)
    """Factor on the number of channels."""
    zero_gamma: StrictBool = True
    """ResNets: the last norm of each block starts at zero, so that a new network is the identity."""
    blur_pool: StrictBool = False
    """ResNets: blur before each stride, against aliasing."""
    squeeze_excite: StrictBool = False
    """ResNets: weigh the channels of each block by what the whole image shows."""
    stochastic_depth: float = Field(0.0, ge=0, lt=1)
    """ResNets: share of samples that skip the last block in training; the first block's is 1/blocks of it."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Transformer: share of activations left out in training."""
    pre_norm: StrictBool = True
    """Transformer: normalise before each part of a layer instead of after it; trains more easily."""
