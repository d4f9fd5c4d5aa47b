"""A look at a few pictures before a run writes anything."""

import numpy as np

from flatout.data.pixels.decode import Undecodable, decode_pixels
from flatout.data.source.dataset import Split
from flatout.data.source.readers import read_source
from flatout.errors import DataError, StorageError

_LOOKED_AT = 16


def refuse_undecodable(split: Split) -> None:
    """DataError where none of a few samples from all over the split can be decoded. It ends with the first that can,
    and leaves it to the loader to say that a store does not answer."""
    ids = np.unique(np.linspace(0, len(split) - 1, _LOOKED_AT).astype(np.int64))
    if split.shapes(ids) is not None:  # a pack of pixels
        return
    reasons = []
    for sample_id in ids.tolist():
        data = read_source(split.locate(np.array([sample_id]))[0])
        if isinstance(data, StorageError):
            return
        try:
            decode_pixels(data)
            return
        except Undecodable as error:
            reasons.append(f"{split.name(sample_id)}: {error}")
    raise DataError(
        f"none of {len(reasons)} samples of training, from all over the data, can be decoded, e.g. {reasons[0]}; are "
        "they pictures? flatout data audit looks closer"
    )
