"""A batch of images as named arrays, and back."""

from dataclasses import fields

import numpy as np

from flatout.data.batch import Failure, LoadStats, Prepared, Work
from flatout.service.protocol.specs import assemble, flatten


def test_what_was_measured_comes_back_to_the_bit() -> None:
    values = [
        number + 0.1 if each.type in (float, "float") else number for number, each in enumerate(fields(LoadStats))
    ]
    work = [Work("producer 1", "fetch", 22175.85, 3.5e-05), Work("producer 1", "decode", 22175.9, 0.1)]
    images, ids = np.zeros((2, 3, 4, 4), np.uint8), np.arange(2)
    before = Prepared(3, 4, images, ids, ids, None, [Failure(7, "a.jpg", "cut off")], LoadStats(*values), work)
    after = assemble(3, 4, *flatten(before))
    assert (after.stages, after.work, after.failures) == (before.stages, before.work, before.failures)
    assert [type(each) for each in vars(after.stages).values()] == [type(each) for each in values]
