"""What the run is paid for."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool

from flatout.config.sections.fields import Bytes, Section, none_is_empty


class NodeCostConfig(Section):
    instance: str | None = None
    """Name in the price catalogue."""
    usd_per_hour: float | None = Field(None, ge=0)
    """Price of one machine where the catalogue has none."""
    count: int = Field(1, ge=1)
    """Number of machines."""


class CacheCostConfig(NodeCostConfig):
    kind: Literal["nodes", "valkey-serverless", "redis-serverless"] = "nodes"
    """Machines of our own, or a serverless cache paid by what it holds and moves."""


class FunctionCostConfig(Section):
    architecture: Literal["x86", "arm"] = "x86"
    """Processor of the functions that prepare batches."""


class StoreCostConfig(Section):
    kind: Literal["s3-standard", "s3-express"] = "s3-standard"
    """Price list of the object store."""
    reached: Literal["same-region", "other-region", "internet"] = "same-region"
    """How the data comes to the machines; from the same region it costs nothing but the requests."""


class DiskCostConfig(Section):
    bytes: Bytes = Field(0, ge=0)
    """Size of the rented (gp3) disk of each training machine; 0 where none is paid for."""
    mb_per_second: float | None = Field(None, gt=0)
    """Throughput rented for each disk; default what its price includes."""


class CostConfig(Section):
    instance: str | None = None
    """Name in the price catalogue of what the run is paid for."""
    usd_per_hour: float | None = Field(None, ge=0)
    """Price of one machine where the catalogue has none."""
    count: int = Field(1, ge=1)
    """Number of machines."""
    spot: StrictBool = False
    """Pay the spot price."""
    region: str = "us-east-1"
    """Where the run is paid for; the shipped prices are for us-east-1."""
    prices: Path | None = None
    """YAML file of prices that replace or extend the shipped ones."""
    coordinator: Annotated[NodeCostConfig, BeforeValidator(none_is_empty)] = NodeCostConfig()
    """Machines that coordinate shared batches; without instance and usd_per_hour there are none."""
    cache: Annotated[CacheCostConfig, BeforeValidator(none_is_empty)] = CacheCostConfig()
    """What holds shared batches; without instance and usd_per_hour there are no machines."""
    functions: FunctionCostConfig = FunctionCostConfig()
    """Functions that prepare shared batches."""
    store: StoreCostConfig = StoreCostConfig()
    """The object store that the data is in."""
    disk: DiskCostConfig = DiskCostConfig()
    """Rented disks of the training machines."""
