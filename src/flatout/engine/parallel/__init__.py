"""Several ranks train one model. A run sees one object, `Parallel`: `SingleProcess`, which does nothing, or `Ranks`."""

from flatout.engine.parallel.place import RankPlace
from flatout.engine.parallel.protocol import GlobalBatch, Parallel
from flatout.engine.parallel.single_process import SingleProcess

__all__ = ["GlobalBatch", "Parallel", "RankPlace", "SingleProcess"]
