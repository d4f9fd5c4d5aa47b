"""When and how the validation split is measured."""

from pydantic import Field

from flatout.config.sections.fields import Section


class ValidateConfig(Section):
    every_epochs: int = Field(1, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    batch_size: int | None = Field(None, ge=1)
    """Samples of one validation batch; default data.batch_size."""
    beam: int = Field(1, ge=1, le=64)
    """Translation: hypotheses kept for each sentence; 1 is greedy."""
