"""The doctor looks at the batch that training would take."""

from pathlib import Path

import pytest

from flatout.commands.doctor_data import check_data
from flatout.config.loading import load_config
from training import recipe


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__global_batch": 16, "data__batch_size": 256}, None),  # batch_size is not used then
        ({"data__global_batch": 100_000, "data__batch_size": 256}, "data.global_batch is 100000"),
        ({"data__batch_size": 100_000}, "data.batch_size is 100000"),
    ],
)
def test_a_batch_larger_than_the_split_is_a_problem(shapes: Path, changes: dict[str, int], said: str | None) -> None:
    config = load_config(recipe(shapes, **changes)).config
    line = next(each for each in check_data(config) if each.area == "data")
    assert (line.status == "problem") == (said is not None)
    assert said is None or said in line.text
