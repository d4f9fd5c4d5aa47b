"""What is trained."""

from typing import Any, Literal

from pydantic import Field, StrictBool

from flatout.config.sections.fields import Section


class ModelConfig(Section):
    name: str = "resnet18"
    """resnet18, resnet34, resnet50, timm:NAME or torchvision:NAME; transformer-small or transformer-base; or a model of
    your own: package.module:Name, ./file.py:Name, or an entry point of flatout.models."""
    options: dict[str, Any] = Field({})
    """Arguments of a model of your own, besides `classes`."""
    stem: Literal["standard", "small"] = "small"
    """standard: 7x7 stride 2 and max-pool; small: 3x3 stride 1, for images of 32-64 pixels."""
    width: float = Field(1.0, gt=0, le=8)
    """Factor on the number of channels."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Transformer: share of activations left out in training."""
    pre_norm: StrictBool = True
    """Transformer: normalise before each part of a layer instead of after it; trains more easily."""
