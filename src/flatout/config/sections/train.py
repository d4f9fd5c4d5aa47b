"""How it is trained: optimizer, schedule, arithmetic, memory, seed."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from flatout.config.sections.fields import Auto, Section, named

OPTIMIZERS = ("sgd", "adamw", "lamb", "muon")
SCHEDULES = ("cosine", "one-cycle", "step", "linear", "constant", "inverse-sqrt")
LOSSES = ("cross-entropy",)


class GroupConfig(Section):
    match: str | tuple[str, ...]
    """Names of parts of the model, as in model.freeze; a parameter belongs to the first group that has its name."""
    lr_scale: float = Field(1.0, gt=0, le=1000)
    """Factor on the learning rate."""
    weight_decay: float | None = Field(None, ge=0)
    """Instead of train.weight_decay; norms and biases are left out here too."""

    @property
    def patterns(self) -> tuple[str, ...]:
        return (self.match,) if isinstance(self.match, str) else self.match


class TrainConfig(Section):
    epochs: int = Field(10, ge=1)
    """Passes over the training samples."""
    max_steps: int | None = Field(None, ge=1)
    """Stop after this many optimizer steps."""
    optimizer: Annotated[str, named("optimizers", *OPTIMIZERS)] = "sgd"
    """sgd is with Nesterov momentum, muon trains what is no hidden matrix by adamw; or your own, such as
    torch.optim:RMSprop (docs/extend.md)."""
    optimizer_options: dict[str, Any] = Field({})
    """Arguments of an optimizer of your own, besides the parameters and `lr`."""
    lr: float = Field(0.5, gt=0)
    """Peak learning rate."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of sgd, and of muon's matrices."""
    beta2: float = Field(0.999, gt=0, lt=1)
    """How slowly adamw, lamb and muon forget the size of gradients."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay; norms and biases are left out."""
    groups: tuple[GroupConfig, ...] = ()
    """Parts of the model with a learning rate or weight decay of their own."""
    layer_decay: float | None = Field(None, gt=0, le=1)
    """Factor on the learning rate from each layer to the one below it; the last layer has the whole rate."""
    schedule: Annotated[str, named("schedules", *SCHEDULES)] = "cosine"
    """Shape of the learning rate after the warm-up; or your own (docs/extend.md)."""
    schedule_options: dict[str, Any] = Field({})
    """Arguments of a schedule of your own."""
    milestones: list[float] = Field([0.5, 0.75])
    """Schedule step: shares of the run after which the rate is multiplied by `gamma`."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Schedule step: factor at each milestone."""
    warmup_epochs: float = Field(1.0, ge=0)
    """Epochs of linear warm-up."""
    warmup_steps: int | None = Field(None, ge=0)
    """Steps of linear warm-up, instead of warmup_epochs."""
    loss: Annotated[str, named("losses", *LOSSES)] = "cross-entropy"
    """What is made small; or your own (docs/extend.md)."""
    loss_options: dict[str, Any] = Field({})
    """Arguments of a loss of your own."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Share of the target spread over all classes."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential moving average of the weights, used for validation."""
    swa: float | None = Field(None, ge=0, lt=1)
    """From this share of the epochs on, the mean of the weights of all steps, used for validation."""
    selective: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(gt=0, le=1)]] | None = None
    """Between these shares of the epochs, such as [0.5, 0.9], only the harder one of each two neighbours in a batch is
    trained on; steps.csv says how many were not."""
    lookahead: int | None = Field(None, ge=1)
    """Steps after which the weights go back a part of the way (Lookahead); also at the end of each epoch."""
    lookahead_share: float = Field(0.5, gt=0, le=1)
    """Lookahead: the part of the way that is kept."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of forward and backward; weights stay fp32. auto is fp32, but on CUDA what the card is fast in: bf16,
    or fp16 before Ampere; with speedups: auto bf16 on a CPU that has units for it. A run that goes on keeps its own."""
    kernels: Literal["auto", "torch", "fused"] = "auto"
    """What computes a ResNet's layers: torch, or flatout's own compiled code for convolution, norm and ReLU in bf16, on
    CPUs with AVX512_BF16 (docs/faster.md). auto is torch; with speedups: auto it is fused wherever that can be had."""
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

    def selects(self, epoch: int) -> bool:
        """Whether this epoch trains on the harder samples alone."""
        return self.selective is not None and self.selective[0] <= epoch / self.epochs < self.selective[1]
