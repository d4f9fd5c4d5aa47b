"""Several ranks train one model. A run sees one object, `Parallel`: `SingleProcess`, which does nothing, or `Ranks`,
whose methods say what each is for, in the order of a run."""

from flatout.engine.parallel.global_batch import GatheredBatch
from flatout.engine.parallel.place import RankPlace
from flatout.engine.parallel.ranks import Ranks
from flatout.engine.parallel.single_process import OwnBatch, SingleProcess

__all__ = ["GlobalBatch", "Parallel", "RankPlace", "SingleProcess"]

GlobalBatch = OwnBatch | GatheredBatch
"""What the ranks told each other about one global batch."""
Parallel = SingleProcess | Ranks
