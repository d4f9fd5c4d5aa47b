"""Hugging Face: Trainer(callbacks=[FlatoutRecording("runs/mine")]) records trainer.train() into a run directory."""

from typing import Any

from transformers import TrainerCallback

from flatout.recording.callbacks.opened import CallbackRun


class FlatoutRecording(TrainerCallback):
    """One train(), one run; rank 0's. A train() that raises tells no callback: its run is closed when the process
    ends, or when the next train() begins."""

    def __init__(self, run: str, instance: str | None = None, name: str | None = None) -> None:
        self._run = CallbackRun(run, instance, name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._run.open()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        self._run.log({name: value for name, value in (logs or {}).items() if name.startswith("eval_")})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.close(None)
