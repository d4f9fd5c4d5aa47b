"""What is recorded of the machine beside the run."""

from typing import Annotated

from pydantic import Field

from flatout.config.sections.fields import Seconds, Section


class MonitorConfig(Section):
    interval_seconds: Annotated[Seconds, Field(ge=0.1, le=3600)] | None = 1.0
    """Time between two rows of system.csv; null records none."""
    interface: str = "auto"
    """Network interface of the training traffic; auto takes the one towards the data's store, or the default route."""
