"""How it is trained: optimizer, schedule, arithmetic, memory, seed."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from flatout.config.sections.fields import Auto, Section


class TrainConfig(Section):
    epochs: int = Field(10, ge=1)
    """Passes over the training samples."""
    max_steps: int | None = Field(None, ge=1)
    """Stop after this many optimizer steps."""
    optimizer: Literal["sgd", "adamw", "lamb"] = "sgd"
    """sgd is with Nesterov momentum."""
    lr: float = Field(0.5, gt=0)
    """Peak learning rate."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd."""
    beta2: float = Field(0.999, gt=0, lt=1)
    """How slowly adamw and lamb forget the size of gradients."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay; norms and biases are left out."""
    schedule: Literal["cosine", "one-cycle", "step", "linear", "constant", "inverse-sqrt"] = "cosine"
    """Shape of the learning rate after the warm-up."""
    milestones: list[float] = Field([0.5, 0.75])
    """Schedule step: shares of the run after which the rate is multiplied by `gamma`."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Schedule step: factor at each milestone."""
    warmup_epochs: float = Field(1.0, ge=0)
    """Epochs of linear warm-up."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of linear warm-up, instead of warmup_epochs."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Share of the target spread over all classes."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, used for validation."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of forward and backward; weights stay fp32. auto is fp32, but on CUDA what the card is fast in: bf16,
    or fp16 before Ampere. A run that goes on keeps what it began with."""
    tf32: StrictBool = True
    """CUDA: matrix products and convolutions of fp32 numbers round their inputs to 10 bits of fraction."""
    channels_last: StrictBool = True
    """Keep images and weights with channels innermost."""
    compile: StrictBool = False
    """Compile the model with torch.compile."""
    checkpointing: StrictBool = False
    """Recompute activations in the backward pass to save memory."""
    accumulate: int = Field(1, ge=1)
    """Cut each batch into this many parts to save memory; the step stays the same."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Everything random follows from it."""
    log_every: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Steps between two readings of the loss; auto is 1 on a CPU and 10 on a GPU, where reading waits for it."""
