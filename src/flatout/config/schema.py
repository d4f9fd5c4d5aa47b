"""The whole recipe: its sections, each in a file of its own under sections/, and the keys above them.

Every key has a default, a type and one line that says what it does.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from flatout.config.sections.checkpoint import CheckpointConfig
from flatout.config.sections.cost import CacheCostConfig, CostConfig, NodeCostConfig
from flatout.config.sections.data import DataConfig, VocabularyConfig
from flatout.config.sections.emulated import EmulatedConfig
from flatout.config.sections.fields import Auto, Bytes, OffAuto, Seconds, Section, named
from flatout.config.sections.model import ModelConfig
from flatout.config.sections.monitor import MonitorConfig
from flatout.config.sections.parallel import ParallelConfig
from flatout.config.sections.stop import StopConfig
from flatout.config.sections.train import TrainConfig
from flatout.config.sections.validate import MetricConfig, ValidateConfig
from flatout.config.sections.views import ViewConfig
from flatout.config.tasks import DEFAULT_TASK, TASKS, TaskSpec, spec_of

__all__ = [
    "Bytes",
    "CacheCostConfig",
    "CheckpointConfig",
    "Config",
    "CostConfig",
    "DataConfig",
    "MetricConfig",
    "ModelConfig",
    "NodeCostConfig",
    "ParallelConfig",
    "Seconds",
    "Section",
    "StopConfig",
    "TrainConfig",
    "ViewConfig",
    "VocabularyConfig",
]


class Config(Section):
    name: str = "run"
    """Name of the run; its directory is runs/<name>."""
    task: Annotated[str, named("tasks", *TASKS)] = DEFAULT_TASK
    """What is learned: one of these, or a task of your own (docs/extend.md)."""
    task_options: dict[str, Any] = Field({})
    """For a task of your own, which finds them in its configuration."""
    device: Literal["auto", "cpu", "cuda", "mps", "emulated"] = "auto"
    """Where to compute; auto takes cuda, then mps, then cpu."""
    threads: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Compute threads on a CPU; auto is every core this process may use, and 1 beside a CUDA device."""
    speedups: OffAuto = "off"
    """auto (--fast): what is to reach the same accuracy sooner, for keys that are not set (docs/faster.md)."""
    emulated: EmulatedConfig = EmulatedConfig()
    """How long a step of device: emulated takes."""
    data: DataConfig = DataConfig()
    """Where the samples are, what a batch is, and who prepares it."""
    views: dict[str, ViewConfig] = Field({})
    """More views by name."""
    model: ModelConfig = ModelConfig()
    """What is trained."""
    train: TrainConfig = TrainConfig()
    """Optimizer, schedule, arithmetic, memory, seed."""
    validate_: ValidateConfig = Field(ValidateConfig(), alias="validate")
    """When and how the validation split is measured."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written, and which are kept."""
    stop: StopConfig = StopConfig()
    """What ends a run before its last epoch."""
    parallel: ParallelConfig = ParallelConfig()
    """Several devices and machines."""
    cost: CostConfig = CostConfig()
    """What the run is paid for."""
    monitor: MonitorConfig = MonitorConfig()
    """What is recorded of the machine."""
    trackers: tuple[Annotated[str, named("trackers", "tensorboard", "wandb", "mlflow")], ...] = ()
    """Where to send records besides the run directory: these need the extra `trackers`; or one of your own."""

    @property
    def spec(self) -> TaskSpec:
        """What is known of the task without its code; of a task of the user's own, what is known of the default one."""
        return spec_of(self.task)

    @property
    def epochs_to_train(self) -> int:
        """The epoch at whose end this command stops; the schedule is that of train.epochs."""
        return min(self.train.epochs, self.stop.after_epochs or self.train.epochs)

    @property
    def batch_key(self) -> str:
        """What sets the size of a batch: samples, or tokens of text."""
        return next(key for key in self.spec.batch_keys if self._batch_value(key) is not None)

    @property
    def batch_setting(self) -> int:
        return int(self._batch_value(self.batch_key))

    def _batch_value(self, key: str) -> Any:
        return getattr(self.data, key.removeprefix("data."))
