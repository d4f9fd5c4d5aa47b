"""oneDNN damages the heap in the backward pass of strided 1x1 convolutions of few channels: none of ours gets there."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from flatout.engine.channels_last import to_channels_last


def test_few_channels_are_outermost_on_a_cpu_and_the_rest_is_not() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 1, 2), nn.Conv2d(16, 16, 1, 2))
    images = torch.rand(2, 3, 16, 16)
    expected = model(images)
    seen = []
    for each in model:
        each.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].stride()[1]))
    found = to_channels_last(model, "cpu")(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected)
    assert seen[:2] == [1, 16 * 16]  # 1: channels are innermost
    assert not to_channels_last(nn.Conv2d(8, 16, 1, 2), "cuda")._forward_pre_hooks


def test_a_narrow_model_trains(tmp_path: Path) -> None:
    """In a process of its own: on the old code it ends by a signal, in its first steps."""
    script = tmp_path / "steps.py"
    script.write_text(
        """
import torch
from flatout.engine.channels_last import to_channels_last
from flatout.tasks.classification.resnet import resnet

torch.set_num_threads(1)
model = to_channels_last(resnet("resnet18", 4, "small", 0.125), "cpu")
images = torch.rand(8, 3, 64, 64).contiguous(memory_format=torch.channels_last)
for _ in range(5):
    model(images).square().mean().backward()
"""
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
