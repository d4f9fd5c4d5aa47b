"""Several ranks train one model. The loop sees one small object: `SingleProcess`, which does nothing, or `Ranks`."""

from flatout.engine.parallel.place import Place
from flatout.engine.parallel.single_process import GlobalBatch, Parallel, SingleProcess

__all__ = ["GlobalBatch", "Parallel", "Place", "SingleProcess"]
