"""A transform of the user's own, for the pairs of features."""

import numpy as np
from numpy.typing import NDArray


def sometimes(image: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    return 255 - image if random.random() < 0.5 else image
