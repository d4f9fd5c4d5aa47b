"""Where the samples are, what a batch of them is, and who prepares it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from flatout.config.sections.fields import Auto, Bytes, OffAuto, Seconds, Section, as_word, named

LAYOUTS = ("detect", "folders", "imagenet", "table", "webdataset", "parquet", "mds")


class VocabularyConfig(Section):
    kind: Literal["bpe", "unigram"] = "bpe"
    """How words are cut into pieces."""
    size: int = Field(8000, ge=300, le=500_000)
    """Most pieces; one vocabulary serves both languages."""


class DataConfig(Section):
    path: str = ""
    """Folder, .tar, .zip, table, pack or object-store URL of the dataset (docs/data-layouts.md)."""
    view: str = "train-64"
    """View of the training samples."""
    eval_view: str = "eval-64"
    """View of the validation samples."""
    layout: Annotated[str, named("datasets", *LAYOUTS)] = "detect"
    """Which files are samples of which class: auto finds out; folders by their names; or your own (docs/extend.md)."""
    label_column: str | None = None
    """The column of a table, .json, parquet or MDS that is the class, where it is not called label or the like."""
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
    classes: Annotated[int, Field(ge=1)] | list[str] | str | None = None
    """Use only the first N classes (in order of name), or those of a list or a file; labels are renumbered."""
    unlisted: Literal["drop", "refuse"] = "drop"
    """What becomes of samples whose class such a list does not name."""
    samples_per_class: int | None = Field(None, ge=1)
    """Use at most this many training samples of each class."""
    holdout: float = Field(0.1, gt=0, lt=1)
    """Share held out for validation where the dataset has no validation split and data.split is not set."""
    split: float | None = Field(None, gt=0, lt=1)
    """Share for validation by the name of each sample alone: samples that are added or removed move no others."""
    balance: Annotated[Literal["off", "classes"], BeforeValidator(as_word)] = "off"
    """classes: an epoch draws equally often from every class (docs/data-layouts.md says what an epoch is then)."""
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(ge=0)]] | None = None
    """Weight of each class in the training loss: balanced is by the inverse of its samples; 1 where not named."""
    max_quarantine_share: float = Field(0.05, ge=0, le=1)
    """Stop when more than this share of an epoch's samples cannot be decoded."""
    batch_deadline_seconds: Seconds = Field(300.0, gt=0)
    """Longest wait for one batch before the run ends with a cause."""
    cache: Annotated[Literal["off", "memory", "disk", "auto"], BeforeValidator(as_word)] = "auto"
    """Keep decoded samples: in memory, on local disk, or (auto) where they fit and that pays in the epochs to come."""
    memory: Bytes | Auto = "auto"
    """Most memory that loading may take, for batches ahead and cached samples; auto is half of what is free."""
    stage: OffAuto = "auto"
    """Copy remote data to local disk while the first epoch trains."""
    shared: Annotated[str, Field(pattern=r"^(off|auto|grpc://.+:\d+)$"), BeforeValidator(as_word)] = "off"
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
    """Translation: the pieces that words are cut into, learned from the training text."""
