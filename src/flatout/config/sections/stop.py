"""What ends a run before its last epoch."""

from pydantic import Field

from flatout.config.sections.fields import Seconds, Section


class StopConfig(Section):
    max_seconds: Seconds | None = Field(None, gt=0)
    """Stop after this long, over all attempts."""
    max_usd: float | None = Field(None, gt=0)
    """Stop when the run has cost this much."""
    patience_epochs: int | None = Field(None, ge=1)
    """Stop after this many validations without a better checkpoint.metric."""
