"""Several ranks train one model. The loop sees one small object: `Alone`, which does nothing, or `Ranks`."""

from flatout.engine.parallel.place import Place
from flatout.engine.parallel.single_process import Alone, Parallel, Told

__all__ = ["Alone", "Parallel", "Place", "Told"]
