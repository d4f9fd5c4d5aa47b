"""State that every rank has for itself (error feedback, momentum of local steps), beside the checkpoint they share."""

from pathlib import Path

from flatout.engine import checkpoint
from flatout.engine.learner import Learner
from flatout.engine.parallel import Parallel
from flatout.errors import CheckpointCorrupt, NoSpace


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
    fits = found is not None and found.state["world_size"] == ranks.world_size
    everyone = all(ranks.group.gather(fits))
    ranks.load_own(learner, found.tensors if everyone and found is not None else {})
    if step == 0 or everyone:
        return []
    return ["error feedback or momentum of local steps is not there for every rank: it starts anew"]


def _folder(checkpoints: Path, rank: int) -> Path:
    return checkpoints / f"rank{rank}"
