"""What ends a run before its last epoch."""

from pydantic import Field

from flatout.config.sections.fields import Seconds, Section


class StopConfig(Section):
    max_seconds: Seconds | None = Field(None, gt=0)
    """Stop after this long, over all attempts."""
    max_usd: float | None = Field(None, gt=0)
    """Stop when the run has cost this much."""
    after_epochs: int | None = Field(None, ge=1)
    """Stop at the end of this epoch, validated and with a checkpoint; the schedule stays that of train.epochs."""
    patience_epochs: int | None = Field(None, ge=1)
    """Stop after this many validations without a better checkpoint.metric."""
