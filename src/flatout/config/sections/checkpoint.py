"""When a checkpoint is written, and which are kept."""

from pydantic import Field

from flatout.config.sections.fields import Section


class CheckpointConfig(Section):
    every_epochs: int = Field(1, ge=1)
    """Epochs between two checkpoints; the end of the run is always saved."""
    every_steps: int | None = Field(None, ge=1)
    """Steps between two checkpoints, besides those at the end of epochs."""
    keep_top: int = Field(3, ge=0)
    """How many of the best checkpoints to keep, besides the newest two."""
    metric: str = "top1"
    """What best means: top1 or top5, bleu of translations, val_loss, train_loss, or a metric of a task of your own."""
