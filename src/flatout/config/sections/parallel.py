"""Several devices and machines: how ranks are started, what they exchange, how long they wait."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from flatout.config.sections.fields import BitsPerSecond, Bytes, Seconds, Section, Share


class ParallelConfig(Section):
    mode: Literal["single", "dp", "ddp", "fsdp"] = "single"
    """single: one process; ddp: one process for each device; fsdp: the same with weights sharded over them; dp: one
    process for several GPUs (slow)."""
    devices: Annotated[int, Field(ge=1, le=1024)] | Literal["all"] = 1
    """Devices of each machine; all is every GPU. On a CPU or emulated device, the number of ranks."""
    nodes: int = Field(1, ge=1)
    """Machines; more than one are started by torchrun, and their number is checked against this."""
    scale_lr: Literal["none", "linear", "sqrt"] = "none"
    """How train.lr, meant for one rank's batch_size, grows with the number of ranks."""
    sync_batchnorm: StrictBool = False
    """Batch norm over the global batch instead of each rank's part."""
    bucket_bytes: Bytes = Field(25_000_000, ge=1)
    """Gradients are exchanged in pieces of about this size, each as soon as it is ready."""
    compress: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """What gradients are turned into on the wire; see docs/slow-links.md for what that does to accuracy."""
    powersgd_rank: int = Field(4, ge=1)
    """PowerSGD: rank of the approximation of each gradient matrix."""
    powersgd_start_step: int = Field(100, ge=2)
    """PowerSGD: steps before it with whole gradients."""
    local_steps: int | None = Field(None, ge=1)
    """Exchange weights every so many steps instead of gradients at every step."""
    local_from_epoch: int = Field(0, ge=0)
    """Local steps: epochs before them with an exchange at every step."""
    outer_lr: float = Field(1.0, gt=0)
    """Local steps: how far to move towards the average of the ranks; 1 is plain averaging, DiLoCo takes 0.7."""
    outer_momentum: float = Field(0.0, ge=0, lt=1)
    """Local steps: Nesterov momentum of these moves; DiLoCo takes 0.9."""
    verify_every: int = Field(100, ge=1)
    """Steps between two checks that all ranks hold equal weights; the first two steps are always checked."""
    silence_seconds: Seconds = Field(60.0, gt=0)
    """A rank that is not heard of for this long ends the run."""
    collective_seconds: Seconds = Field(600.0, gt=0)
    """Longest time ranks wait for each other in one exchange."""
    max_restarts: int = Field(0, ge=0)
    """How often ranks that died are started again from the newest checkpoint (under torchrun: its --max-restarts)."""
    interface: str = "auto"
    """Network interface between machines; auto is the one that leads to the first machine."""
    preflight: StrictBool = True
    """Measure the link between ranks before the first step."""
    min_link: BitsPerSecond | None = Field(None, gt=0)
    """Refuse to start over a slower link than this."""
    warn_exposed_share: Share = 0.2
    """Warn when more than this share of a step is predicted to be spent waiting for the network."""
