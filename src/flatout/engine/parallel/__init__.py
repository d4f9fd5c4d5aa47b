"""Several ranks train one model. The loop sees one small object: `Alone`, which does nothing, or `Ranks`."""

from flatout.engine.parallel.alone import Alone, Parallel, Told
from flatout.engine.parallel.place import Place

__all__ = ["Alone", "Parallel", "Place", "Told"]
