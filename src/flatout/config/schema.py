"""The typed shape of a recipe. Every key has a default, a type and one line that says what it does."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from flatout.config.tasks import DEFAULT_TASK, METRICS, TASKS, TaskSpec
from flatout.errors import ConfigError
from flatout.units import parse_bits_per_second, parse_bytes, parse_seconds


def _word(value: Any) -> Any:
    """YAML 1.1 reads a bare off/on as a boolean; where a word is meant it is turned back."""
    return {False: "off", True: "on"}.get(value, value) if isinstance(value, bool) else value


def _none_is_empty(value: Any) -> Any:
    """A section set to null is the section with its defaults."""
    return {} if value is None else value


def _quantity(parse: Callable[[Any], float]) -> BeforeValidator:
    """A number with a unit; what is wrong with it is said together with the key it stands under."""

    def parse_or_explain(value: Any) -> float:
        try:
            return parse(value)
        except ConfigError as error:
            raise PydanticCustomError("quantity", "{reason}", {"reason": str(error)}) from None

    return BeforeValidator(parse_or_explain)


def _is_numeric(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_numeric(part) for part in get_args(annotation))


def _ascending(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise PydanticCustomError("order", "the smallest comes first, then the largest")
    return bounds


Bytes = Annotated[int, _quantity(parse_bytes)]
Seconds = Annotated[float, _quantity(parse_seconds)]
BitsPerSecond = Annotated[float, _quantity(parse_bits_per_second)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Side = Annotated[int, Field(ge=1, le=4096)]
Auto = Literal["auto"]
OffAuto = Annotated[Literal["off", "auto"], BeforeValidator(_word)]
if TYPE_CHECKING:
    TaskName = str
    MetricName = str
else:  # the names are those of config/tasks.py, which a type checker cannot read
    TaskName, MetricName = Literal[tuple(TASKS)], Literal[tuple(METRICS)]


MOST_WHOLE, MOST = 1e18, 1e30
"""Of any whole number in a recipe (bytes of an exabyte), and of any other (its square is still finite)."""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, coerce_numbers_to_str=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_true_as_one(cls, value: Any, info: ValidationInfo) -> Any:
        """`epochs: yes` is a boolean in YAML, and would otherwise pass for 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and _is_numeric(field.annotation):
            raise PydanticCustomError("boolean_as_number", "input should be a number, not a boolean")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _refuse_absurd(cls, value: Any) -> Any:
        """No key needs more, and what is computed from it stays finite."""
        most = MOST_WHOLE if isinstance(value, int) else MOST
        if isinstance(value, int | float) and abs(value) > most:
            raise PydanticCustomError("too_large", f"input should be at most {most:g}")
        return value


class EmulatedConfig(Section):
    base_seconds: float = Field(0.010, ge=0)
    """Seconds of a step that do not depend on the batch."""
    seconds_per_sample: float = Field(0.0002, ge=0)
    """Seconds of a step for each sample in the batch."""


class ViewConfig(Section):
    base: str | None = None
    """Shipped view to start from; the other keys change it."""
    crop: Literal["random-resized", "pad", "centre", "raw"] | None = None
    """How the crop is chosen: random-resized, pad (shift by up to `pad` pixels), centre, or raw (none at all)."""
    size: Side | None = None
    """Side of the square result in pixels."""
    sizes: dict[Annotated[int, Field(ge=0)], Side] | None = None
    """Progressive resizing: first epoch -> side in pixels."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Centre crop: share of the short side that is kept."""
    scale: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], Share], AfterValidator(_ascending)] | None = None
    """Random resized crop: smallest and largest share of the area."""
    ratio: Annotated[tuple[Positive, Positive], AfterValidator(_ascending)] | None = None
    """Random resized crop: smallest and largest width/height."""
    pad: int | None = Field(None, ge=0)
    """Pad-crop: largest shift in pixels."""
    flip: float | None = Field(None, ge=0, le=1)
    """Probability of a horizontal flip."""
    colour_jitter: tuple[NotNegative, NotNegative, NotNegative] | None = None
    """Largest relative change of brightness, contrast, saturation."""
    trivial_augment: StrictBool | None = None
    """One random operation of random strength for each image (TrivialAugment)."""
    erase: float | None = Field(None, ge=0, le=1)
    """Probability of erasing a random rectangle."""
    mixup: float | None = Field(None, ge=0, le=1)
    """Beta parameter of mixup; 0 is off."""
    cutmix: float | None = Field(None, ge=0, le=1)
    """Beta parameter of cutmix; 0 is off. With mixup too, each pair of neighbours gets one of them."""
    mean: tuple[Share, Share, Share] | None = None
    """Mean of each channel (0..1), subtracted on the device."""
    std: tuple[Positive, Positive, Positive] | None = None
    """Standard deviation of each channel (0..1), divided by on the device."""
    decode: Literal["exact", "scaled"] | None = None
    """exact, or scaled: JPEGs much larger than the result are decoded at 1/2, 1/4 or 1/8 of their size."""


class VocabularyConfig(Section):
    kind: Literal["bpe", "unigram"] = "bpe"
    """How words are cut into pieces."""
    size: int = Field(8000, ge=300, le=500_000)
    """Most pieces; one vocabulary serves both languages."""


class DataConfig(Section):
    path: str = ""
    """Folder, .tar, pack or object-store URL of the dataset."""
    view: str = "train-64"
    """View of the training samples."""
    eval_view: str = "eval-64"
    """View of the validation samples."""
    batch_size: int = Field(256, ge=1)
    """Samples of one optimizer step on one rank."""
    global_batch: int | None = Field(None, ge=1)
    """Samples of one optimizer step over all ranks, instead of batch_size: the same batches on any number of ranks."""
    workers: Annotated[int, Field(ge=0, le=512)] | Auto = "auto"
    """Loader workers; 0 prepares batches in the training thread; auto adapts their number while running."""
    worker_kind: Literal["auto", "thread", "process"] = "auto"
    """Threads (need the compiled decoder to scale) or processes; auto chooses."""
    prefetch: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    """Batches prepared ahead in all; auto is two for each worker."""
    classes: Annotated[int, Field(ge=1)] | list[str] | None = None
    """Use only the first N classes (in order of name), or the named ones; labels are renumbered."""
    samples_per_class: int | None = Field(None, ge=1)
    """Use at most this many training samples of each class."""
    holdout: float = Field(0.1, gt=0, lt=1)
    """Share held out for validation where the dataset has no validation split."""
    max_quarantine_share: float = Field(0.05, ge=0, le=1)
    """Stop when more than this share of an epoch's samples cannot be decoded."""
    batch_deadline_seconds: Seconds = Field(300.0, gt=0)
    """Longest wait for one batch before the run ends with a cause."""
    cache: Annotated[Literal["off", "memory", "disk", "auto"], BeforeValidator(_word)] = "auto"
    """Keep decoded samples: in memory, on local disk, or (auto) where they fit and that pays in the epochs to come."""
    memory: Bytes | Auto = "auto"
    """Most memory that loading may take, for batches ahead and cached samples; auto is half of what is free."""
    stage: OffAuto = "auto"
    """Copy remote data to local disk while the first epoch trains."""
    shared: Annotated[str, Field(pattern=r"^(off|auto|grpc://.+:\d+)$"), BeforeValidator(_word)] = "off"
    """Share prepared batches: auto with other jobs on this machine, grpc://HOST:PORT through a `flatout serve`."""
    shared_token: Path | None = None
    """File with the token of the service at grpc://HOST:PORT; else FLATOUT_SHARED_TOKEN in the environment."""
    shared_tls_ca: Path | None = None
    """File (PEM) of the authority that signed the certificates of that service and of its Redis. Without it there is no
    TLS, which only a service on this machine's loopback may lack."""
    shared_bytes: Annotated[Bytes, Field(gt=0)] | Auto = "auto"
    """Room for shared batches, set by the job that comes first; auto is a quarter of the free memory."""
    shared_start: Literal["beginning", "window"] = "beginning"
    """beginning: the order of batches is that of a job alone. window: start at the batches that other jobs are
    reading, and read at the end of each epoch what was missed at its start."""
    source_language: str | None = None
    """Translation: the ending of the files to translate from, such as en for train.en or train.en.gz."""
    target_language: str | None = None
    """Translation: the ending of the files to translate to; with train.tsv, the second column's language."""
    batch_tokens: int = Field(8192, ge=16)
    """Translation: most tokens of one batch, both languages and padding counted."""
    max_tokens: int = Field(128, ge=1, le=1000)
    """Translation: sentence pairs with more tokens on one side are left out."""
    vocabulary: VocabularyConfig = VocabularyConfig()


class ModelConfig(Section):
    name: str = "resnet18"
    """resnet18, resnet34, resnet50, timm:NAME or torchvision:NAME; transformer-small or transformer-base."""
    stem: Literal["standard", "small"] = "small"
    """standard: 7x7 stride 2 and max-pool; small: 3x3 stride 1, for images of 32-64 pixels."""
    width: float = Field(1.0, gt=0, le=8)
    """Factor on the number of channels."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Transformer: share of activations left out in training."""
    pre_norm: StrictBool = True
    """Transformer: normalise before each part of a layer instead of after it; trains more easily."""


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
    milestones: list[float] = [0.5, 0.75]
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


class ValidateConfig(Section):
    every_epochs: int = Field(1, ge=1)
    """Epochs between two validations; the last epoch is always validated."""
    batch_size: int | None = Field(None, ge=1)
    """Samples of one validation batch; default data.batch_size."""
    beam: int = Field(1, ge=1, le=64)
    """Translation: hypotheses kept for each sentence; 1 is greedy."""


class CheckpointConfig(Section):
    every_epochs: int = Field(1, ge=1)
    """Epochs between two checkpoints; the end of the run is always saved."""
    every_steps: int | None = Field(None, ge=1)
    """Steps between two checkpoints, besides those at the end of epochs."""
    keep_top: int = Field(3, ge=0)
    """How many of the best checkpoints to keep, besides the newest two."""
    metric: MetricName = TASKS[DEFAULT_TASK].metrics[0]
    """What best means."""


class StopConfig(Section):
    max_seconds: Seconds | None = Field(None, gt=0)
    """Stop after this long, over all attempts."""
    max_usd: float | None = Field(None, gt=0)
    """Stop when the run has cost this much."""
    patience_epochs: int | None = Field(None, ge=1)
    """Stop after this many validations without a better checkpoint.metric."""


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
    coordinator: Annotated[NodeCostConfig, BeforeValidator(_none_is_empty)] = NodeCostConfig()
    """Machines that coordinate shared batches; without instance and usd_per_hour there are none."""
    cache: Annotated[CacheCostConfig, BeforeValidator(_none_is_empty)] = CacheCostConfig()
    """What holds shared batches; without instance and usd_per_hour there are no machines."""
    functions: FunctionCostConfig = FunctionCostConfig()
    store: StoreCostConfig = StoreCostConfig()
    disk: DiskCostConfig = DiskCostConfig()


class MonitorConfig(Section):
    interval_seconds: Annotated[Seconds, Field(ge=0.1, le=3600)] | None = 1.0
    """Time between two rows of system.csv; null records none."""
    interface: str = "auto"
    """Network interface of the training traffic; auto takes the one towards the data's store, or the default route."""


class Config(Section):
    name: str = "run"
    """Name of the run; its directory is runs/<name>."""
    task: TaskName = DEFAULT_TASK
    """What is learned."""
    device: Literal["auto", "cpu", "cuda", "mps", "emulated"] = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    threads: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Compute threads on a CPU; auto is every core this process may use, and 1 beside a CUDA device."""
    emulated: EmulatedConfig = EmulatedConfig()
    data: DataConfig = DataConfig()
    views: dict[str, ViewConfig] = {}
    """More views by name."""
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    validate_: ValidateConfig = Field(ValidateConfig(), alias="validate")
    checkpoint: CheckpointConfig = CheckpointConfig()
    stop: StopConfig = StopConfig()
    parallel: ParallelConfig = ParallelConfig()
    cost: CostConfig = CostConfig()
    monitor: MonitorConfig = MonitorConfig()
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Where to send records besides the run directory; needs the extra `trackers`."""

    @property
    def spec(self) -> TaskSpec:
        """What is known of the task without its code."""
        return TASKS[self.task]

    @property
    def batch_key(self) -> str:
        """What sets the size of a batch: samples, or tokens of text."""
        return next(key for key in self.spec.batch_keys if self._batch_value(key) is not None)

    @property
    def batch_setting(self) -> int:
        return int(self._batch_value(self.batch_key))

    def _batch_value(self, key: str) -> Any:
        return getattr(self.data, key.removeprefix("data."))
