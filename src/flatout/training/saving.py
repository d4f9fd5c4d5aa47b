"""Checkpoints of a run, in a directory that somebody may move or delete meanwhile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from flatout.config.loading import dump_config
from flatout.config.tasks import metric_named
from flatout.engine import checkpoint
from flatout.engine.learner import Learner
from flatout.engine.loop import finite_tensors
from flatout.engine.parallel import Parallel
from flatout.engine.progress import Progress
from flatout.errors import CheckpointCorrupt, NoSpace, RunFailed
from flatout.runs import RunDirectory
from flatout.runs.directory import write_json, write_text
from flatout.timeline import Recorder
from flatout.training.data_identity import RunIdentity
from flatout.training.decided import DecisionRecords
from flatout.training.environment import describe_environment
from flatout.training.records import Records
from flatout.training.setup import Setup

MAX_FAILED_SAVES = 3  # in a row; then the run ends


@dataclass
class Saving:
    """Writes one attempt's checkpoints, and finds its directory again where that is not where it was."""

    setup: Setup
    learner: Learner
    directory: RunDirectory
    ranks: Parallel
    records: Records
    recorder: Recorder
    identity: RunIdentity
    decided: DecisionRecords
    say: Callable[[str], None]
    sources: Mapping[str, str]  # digests of the user's own code
    failed_saves: int = 0  # since the last that succeeded
    lost_home: str | None = None  # why this run ends as soon as its weights are saved

    def require_space(self) -> None:
        """Before the first step: room for two checkpoints; the optimizer may still grow to twice the weights."""
        if self.ranks.rank == 0:
            checkpoint.require_space(self.directory.root, 3 * weight_bytes(self.learner))

    def write_facts(self) -> None:
        """What a run directory holds from the beginning."""
        setup, directory = self.setup, self.directory
        self.write_config()
        if setup.dataset.classes:
            write_json(directory.classes, list(setup.dataset.classes))
        for name, text in setup.opened.files.items():
            write_text(directory.root / name, text)
        write_json(directory.environment, describe_environment(setup.device, setup.config))
        self.decided.write()

    def write_config(self) -> None:
        """With it the directory is a run."""
        write_text(self.directory.config, dump_config(self.setup.config))

    def save(self, progress: Progress) -> None:
        """A checkpoint by all ranks together: state of their own each, then the one that they share by rank 0."""
        tensors = finite_tensors(self.learner, progress.step, keep=self.ranks.rank == 0)
        save_own(self.ranks, self.learner, self.directory.checkpoints, progress.step)
        if self.ranks.rank != 0:
            return
        self.keep_home(progress.step)
        self.write(tensors, progress)
        if self.lost_home is not None:
            raise RunFailed(self.lost_home)

    def write(self, tensors: Mapping[str, Tensor], progress: Progress) -> None:
        """Rank 0's part of a checkpoint. A full disk is a warning, until it has been full too often."""
        config, dataset, folder = self.setup.config, self.setup.dataset, self.directory.checkpoints
        metric = progress.metrics.get(config.checkpoint.metric) if progress.batch_index == 0 else None
        state = {
            "progress": vars(progress),
            "metric": metric,
            "precision": self.learner.precision.scalars(),
            "data_fingerprint": dataset.fingerprint,
            "samples": {"train": len(dataset.train)},
            "classes": list(dataset.classes),  # in the order of their labels: what the outputs mean
            "attempt": self.records.attempt,
            "global_batch": self.setup.opened.global_batch,
            "sources": dict(self.sources),
        }
        self.identity.save()
        try:
            checkpoint.save(folder, progress.step, tensors, state)
            checkpoint.prune(folder, config.checkpoint.keep_top, metric_named(config.checkpoint.metric).better)
            self.failed_saves = 0
        except NoSpace as error:
            self.failed_saves += 1
            self.say(f"WARNING: {error}")
            if self.failed_saves >= MAX_FAILED_SAVES:
                raise RunFailed(f"{MAX_FAILED_SAVES} checkpoints in a row could not be written: {error}") from None

    def keep_home(self, step: int) -> bool:
        """Before anything is written by its name: is the run's directory still the one it was? Where it is not, what
        this process knows is written anew, and True returned: a checkpoint has to follow."""
        fate, before = self.directory.fate(), self.directory.root
        if fate == "here" or self.ranks.rank != 0:
            return False
        self.directory.find_again()
        self.records.follow()
        self.identity.follow(self.directory.root)
        self.recorder.follow(self.directory.spans / "rank0.jsonl")
        self.write_facts()
        now = self.directory.root
        if fate == "deleted":
            self.say(
                f"WARNING: {before} was deleted while training; found at step {step} and written anew, with all "
                "records that were open, but without its older checkpoints"
            )
        else:
            what = f"moved to {now}" if fate == "moved" else "replaced by another one, which is left alone"
            self.lost_home = (
                f"the run directory {before} was {what} while training; weights and records up to step {step} are in "
                f"{now}: --run {now} resumes"
            )
        return True


def weight_bytes(learner: Learner) -> int:
    """Bytes of the model's state, without optimizer and averages."""
    return sum(value.nbytes for value in learner.model.state_dict().values())


def save_own(ranks: Parallel, learner: Learner, checkpoints: Path, step: int) -> None:
    """On every rank, before rank 0 writes the checkpoint: where that one exists, these exist too."""
    own = ranks.own_tensors(learner)
    if own is None:
        return
    folder, state = _folder(checkpoints, ranks.rank), {"world_size": ranks.world_size}
    try:
        checkpoint.save(folder, step, own, state)
        checkpoint.prune(folder, 0, "higher")
    except NoSpace:
        pass  # rank 0 finds the same, says so and stops when it must; without this file the state starts anew
    ranks.group.gather(None)  # rank 0 goes on when all are done


def restore_own(ranks: Parallel, learner: Learner, checkpoints: Path, step: int) -> list[str]:
    """Take it back where every rank still has it; else all start it anew."""
    if ranks.own_tensors(learner) is None:
        return []
    path = _folder(checkpoints, ranks.rank) / f"step-{step:09d}.safetensors"
    try:
        found = checkpoint.load(path) if path.exists() else None
    except CheckpointCorrupt:
        found = None
    fits = found is not None and found.state.get("world_size") == ranks.world_size
    everyone = all(ranks.group.gather(fits))
    ranks.load_own(learner, found.tensors if everyone and found is not None else {})
    if step == 0 or everyone:
        return []
    return ["error feedback or momentum of local steps is not there for every rank: it starts anew"]


def _folder(checkpoints: Path, rank: int) -> Path:
    return checkpoints / f"rank{rank}"
