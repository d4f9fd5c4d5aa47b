"""Lookahead: when fast and slow weights meet, where, and that it all goes through a checkpoint."""

import pytest
import torch
from torch import nn

from flatout.config.loading import load_config
from flatout.engine.lookahead import Lookahead
from flatout.errors import ConfigError


def line(value: float) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def test_weights_go_back_a_part_of_the_way_after_every_few_batches_of_an_epoch() -> None:
    model = line(0.0)
    ahead, seen = Lookahead.start(model, every=3, share=0.25), []
    for index in range(7):
        model.weight.data += 4.0
        ahead.after_batch(model, index)
        seen.append(model.weight.item())
    assert seen == [4.0, 8.0, 3.0, 7.0, 11.0, 6.0, 10.0]
    ahead.meet(model)  # at the end of the epoch
    assert model.weight.item() == ahead.slow["weight"].item() == 7.0
    ahead.meet(model)  # as a run does that is killed after it and goes on
    assert model.weight.item() == 7.0


def test_what_is_frozen_has_no_slow_weights() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert Lookahead.start(model, 2, 0.5).slow.keys() == {"weight"}


def test_it_goes_on_from_its_tensors_as_if_never_stopped() -> None:
    model = line(1.0)
    ahead = Lookahead.start(model, 2, 0.5)
    model.weight.data += 1.0
    resumed = Lookahead.start(line(9.0), 2, 0.5)
    resumed.load({name: value.clone() for name, value in ahead.tensors().items()})
    other = line(model.weight.item())
    for each, its in ((model, ahead), (other, resumed)):
        each.weight.data += 1.0
        its.after_batch(each, 1)
    assert torch.equal(model.weight, other.weight)
    assert model.weight.item() == 2.0
    with pytest.raises(ConfigError, match="slow weights do not fit the model"):
        resumed.load({"weight": torch.zeros(2, 2)})


@pytest.mark.parametrize(
    ("parallel", "names"),
    [({"mode": "fsdp"}, r"parallel\.mode is fsdp"), ({"mode": "ddp", "local_steps": 2}, r"parallel\.local_steps")],
)
def test_what_keeps_other_weights_on_each_rank_is_refused(parallel: dict[str, object], names: str) -> None:
    with pytest.raises(ConfigError, match=rf"{names}.*train\.lookahead"):
        load_config({"train": {"lookahead": 5}, "parallel": parallel})
