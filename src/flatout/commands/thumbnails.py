"""Small pictures of samples, as text that a page can hold."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from flatout.data.pixels.decode import Undecodable, decode_image
from flatout.data.source.dataset import Split
from flatout.data.source.readers import read_source
from flatout.errors import StorageError

_SIDE = 96


def thumbnail(split: Split, sample_id: int) -> str | None:
    """A data URI; None where the sample cannot be read or decoded."""
    ids = np.array([sample_id])
    return _drawn(read_source(split.locate(ids)[0]), split.shapes(ids))


def _drawn(data: bytes | memoryview | StorageError, shapes: np.ndarray[Any, Any] | None) -> str | None:
    if isinstance(data, StorageError):
        return None
    try:
        if shapes is not None and shapes[0][0]:
            image = Image.fromarray(np.frombuffer(data, np.uint8).reshape(*shapes[0], 3))
        else:
            image = decode_image(data)
    except Undecodable:
        return None
    image.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
