"""What validation says of a classifier."""

import pytest
import torch
from torch import Tensor, nn

from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.data.pixels.views import resolve_view
from flatout.errors import ConfigError
from flatout.tasks.classification.task import Classification, Inputs


@pytest.mark.parametrize(("classes", "names"), [(4, {"top1", "val_loss"}), (6, {"top1", "top5", "val_loss"})])
def test_top_5_is_left_out_where_it_says_nothing(classes: int, names: set[str]) -> None:
    view = resolve_view("eval-64", {})
    task = Classification(Config(), classes, view, view)
    assert task.metrics({"samples": 8, "top1": 4, "top5": 8, "loss": 1.0}).keys() == names


class Bright(nn.Module):
    """Says class 0, the surer the brighter a picture is."""

    def forward(self, images: Tensor) -> Tensor:
        self.side = images.shape[2]
        bright = images.mean((1, 2, 3))
        return torch.stack([bright, -bright], 1)


@pytest.mark.parametrize(("side", "looked_at"), [(16, 16), (64, 32)])
def test_the_harder_one_of_two_neighbours_is_trained_on(side: int, looked_at: int) -> None:
    view, model = resolve_view("eval-64", {}), Bright()
    task = Classification(Config(), 2, view, view)
    brightness = torch.tensor([200, 10, 10, 200, 200, 200, 90], dtype=torch.uint8)
    images = brightness[:, None, None, None].expand(-1, 3, side, side)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1])  # dark is hard where it is 0, bright where it is 1
    scales = torch.arange(7.0)[:, None]
    kept = task.harder(model, Inputs(images, labels, scales=scales))
    assert kept.images[:, 0, 0, 0].tolist() == [10, 10, 200, 90]  # the last has no neighbour
    assert kept.labels.tolist() == [0, 0, 1, 1]
    assert kept.scales is not None
    assert kept.scales[:, 0].tolist() == [1, 2, 5, 6]
    assert model.side == looked_at


def test_between_which_epochs_samples_are_selected() -> None:
    train = load_config({"train": {"epochs": 10, "selective": [0.5, 0.9]}}).config.train
    assert [epoch for epoch in range(10) if train.selects(epoch)] == [5, 6, 7, 8]
    assert not Config().train.selects(5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "emulated"}, "no sample is harder"),
        ({"parallel": {"mode": "fsdp"}}, "whole models"),
        ({"views": {"train-64": {"base": "train-64", "mixup": 0.2}}}, "two neighbours"),
        ({"train": {"selective": [0.9, 0.5]}}, "must be below the second"),
    ],
)
def test_what_does_not_go_with_a_selection(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=f"train.selective.*{said}"):
        load_config({"train": {"selective": [0.5, 0.9]}, **changes})
