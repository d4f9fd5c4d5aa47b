"""When and how the validation split is measured."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from flatout.config.sections.fields import Section, named


class MetricConfig(Section):
    name: Annotated[str, named("metrics")]
    """A metric of your own (docs/extend.md)."""
    options: dict[str, Any] = Field({})
    """What it is made with."""


def _by_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ValidateConfig(Section):
    every_epochs: int = Field(1, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    batch_size: int | None = Field(None, ge=1)
    """Samples of one validation batch; default data.batch_size."""
    metrics: tuple[Annotated[MetricConfig, BeforeValidator(_by_name)], ...] = ()
    """Metrics of your own besides top-1, top-5 and loss: names, or name and options."""
    beam: int = Field(1, ge=1, le=64)
    """Translation: hypotheses kept for each sentence; 1 is greedy."""
