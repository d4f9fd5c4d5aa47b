"""The mean of several checkpoints' weights: often a better model than any one of them, and free."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from flatout.engine import checkpoint
from flatout.engine.weight_files import read_weights
from flatout.errors import ConfigError


def averaged_weights(folder: Path, count: int, better: str) -> tuple[dict[str, Tensor], list[int]]:
    """The mean of the best `count` checkpoints by their metric (the newest, where none has one), and their steps.

    Of each, the moving average is taken where there is one: that is what was validated.
    """
    chosen = checkpoint.best_first(folder, better)[:count]
    if len(chosen) < count:
        raise ConfigError(
            f"{folder} has {len(chosen)} checkpoints to average, not {count}; "
            "ask for fewer, or train with a larger checkpoint.keep_top"
        )
    return mean([read_weights(each.path).tensors for each in chosen]), [each.step for each in chosen]


def mean(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Entry by entry, summed in double precision; what is not a fraction, such as a counter, is the first one's."""
    result = {}
    for name, value in states[0].items():
        if value.is_floating_point():
            total = value.double()
            for state in states[1:]:
                total = total + state[name].double()
            value = (total / len(states)).to(value.dtype)
        result[name] = value
    return result
