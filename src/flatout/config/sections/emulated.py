"""The accelerator that `device: emulated` stands for: `seconds = base_seconds + seconds_per_sample * batch`."""

from pydantic import Field

from flatout.config.sections.fields import Section


class EmulatedConfig(Section):
    base_seconds: float = Field(0.010, ge=0)
    """Seconds of a step that do not depend on the batch."""
    seconds_per_sample: float = Field(0.0002, ge=0)
    """Seconds of a step for each sample in the batch."""
