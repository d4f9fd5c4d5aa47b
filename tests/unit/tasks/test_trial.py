"""User code is tried before a run begins, and the run is as if nothing had been tried."""

import pytest
import torch
from torch import Tensor, nn

from flatout.errors import ConfigError
from flatout.tasks.classification.own_code import trial_images, try_model


class Net(nn.Module):
    def __init__(self, in_training: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(8, 4)
        self.in_training = in_training

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(images).flatten(1))
        return logits[:, : self.in_training] if self.training else logits


def test_weights_statistics_and_random_state_are_as_before() -> None:
    torch.manual_seed(3)
    model = Net()
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    try_model(model, trial_images(16, torch.device("cpu")), 4, "./net.py:Net")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())


def test_what_a_model_gives_in_training_is_looked_at_too() -> None:
    with pytest.raises(ConfigError, match=r"which gives \[2, 3\] for images \[2, 3, 16, 16\]"):
        try_model(Net(in_training=3), trial_images(16, torch.device("cpu")), 4, "./net.py:Net")


class Experts(nn.Module):
    """Each image goes through one of two parts, dark ones through the first."""

    def __init__(self) -> None:
        super().__init__()
        self.dark, self.light = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean((2, 3))
        chosen = (means.sum(1) > 0).nonzero().flatten().tolist()
        rows = [(self.light if row in chosen else self.dark)(means[row]) for row in range(len(means))]
        return torch.stack(rows)


def test_parts_that_only_some_images_go_through_are_not_called_unused() -> None:
    try_model(Experts(), trial_images(16, torch.device("cpu")), 4, "./net.py:Net")


def test_an_unused_parameter_is_named_unless_it_is_frozen() -> None:
    model = Net()
    model.spare = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"whose parameter spare\.weight receives no gradient"):
        try_model(model, trial_images(16, torch.device("cpu")), 4, "./net.py:Net")
    model.spare.requires_grad_(False)
    try_model(model, trial_images(16, torch.device("cpu")), 4, "./net.py:Net")
