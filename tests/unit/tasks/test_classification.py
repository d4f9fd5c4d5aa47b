"""What validation says of a classifier."""

import pytest

from flatout.config.schema import Config
from flatout.data.pixels.views import resolve_view
from flatout.tasks.classification.task import Classification


@pytest.mark.parametrize(("classes", "names"), [(4, {"top1", "val_loss"}), (6, {"top1", "top5", "val_loss"})])
def test_top_5_is_left_out_where_it_says_nothing(classes: int, names: set[str]) -> None:
    view = resolve_view("eval-64", {})
    task = Classification(Config(), classes, view, view)
    assert task.metrics({"samples": 8, "top1": 4, "top5": 8, "loss": 1.0}).keys() == names
