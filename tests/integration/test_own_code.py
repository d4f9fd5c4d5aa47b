"""User code for everything a recipe names, with ranks, shared batches, kill -9, edits and mistakes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.runs.tables import read_table
from flatout.service.transport.paths import service_paths
from training import assert_same_training, command, row_count, start, summary, wait_until, write_recipe

NET = """
from torch import nn
from shape import pooled


class Net(nn.Module):
    def __init__(self, classes, channels=4):
        super().__init__()
        self.body = nn.Conv2d(3, channels, 3, 2)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        return self.head(self.drop(pooled(self.body(images))))


class OnlyValidates(Net):
    def forward(self, images):
        return None if self.training else super().forward(images)


class Spare(Net):
    def __init__(self, classes, channels):
        super().__init__(classes, channels)
        self.spare = nn.Linear(channels, classes)


class Nothing(nn.Module):
    def __init__(self, classes, channels):
        super().__init__()

    def forward(self, images):
        return images.mean((2, 3))
"""
SHAPE = "def pooled(images):\n    return images.relu().mean((2, 3))\n"
DARKER = """
import numpy as np


def darker(image, random, most):
    return (image * (1 - most * random.random())).astype(np.uint8)


def cut(image, random, most):
    return image[:, :4]


def gone(image, random, most):
    return None


def stops(image, random, most):
    raise SystemExit(3)


def beyond(image, random, most):
    return image[7]
"""
PARTS = """
import torch
from torch.nn import functional as F


class Focal:
    def __init__(self, power):
        self.power = power

    def __call__(self, outputs, labels):
        losses = F.cross_entropy(outputs, labels, reduction="none")
        return (1 - torch.exp(-losses)) ** self.power * losses


class MeanError:
    better = "lower"

    def sums(self, outputs, labels):
        return {"wrong": (outputs.argmax(1) != labels).sum(), "all": len(labels)}

    def value(self, sums):
        return sums["wrong"] / sums["all"]


def saw(step, total_steps, peak, warmup_steps, teeth):
    return peak * (1 - step % teeth / teeth)
"""
OWN = {
    "model__name": "./net.py:Net",
    "model__options": {"channels": 6},
    "model__stem": "standard",
    "model__width": 1.0,
    "views__small__transform": "./darker.py:darker",
    "views__small__transform_options": {"most": 0.5},
    "train__loss": "./parts.py:Focal",
    "train__loss_options": {"power": 2},
    "train__optimizer": "torch.optim:Adadelta",
    "train__optimizer_options": {"rho": 0.8},
    "train__schedule": "./parts.py:saw",
    "train__schedule_options": {"teeth": 5},
    "train__lr": 0.5,
    "validate__metrics": ["./parts.py:MeanError"],
    "checkpoint__metric": "mean_error",
}
RANKS = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False, "data__batch_size": 4}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with user code, and no service that others use."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "work"
    folder.mkdir()
    for name, text in {"net.py": NET, "shape.py": SHAPE, "darker.py": DARKER, "parts.py": PARTS}.items():
        (folder / name).write_text(text)
    yield folder
    wait_until(lambda: not service_paths().socket.exists(), "the service to end", 60)


def test_ranks_with_shared_batches_and_kills_are_equal_to_the_bit(shapes: Path, work: Path) -> None:
    place = {"XDG_RUNTIME_DIR": str(work.parent)}
    recipe = write_recipe(work / "own.yaml", shapes, **OWN, **RANKS, data__shared="auto")
    alone = write_recipe(work / "alone.yaml", shapes, **OWN, **RANKS)
    done = command("train", alone, "--run", "alone", cwd=work)
    assert done.code == 0, done.err
    running = start("train", recipe, "--run", "own", cwd=work, environment=place)
    wait_until(lambda: row_count(work / "own") >= 7 or not running.running, "7 steps")
    running.kill()
    done = command("train", recipe, "--run", "own", cwd=work, environment=place)
    assert done.code == 0, done.err
    assert_same_training(work / "own", work / "alone")
    shared = summary(work / "own")["shared"]
    assert shared["hits"] > 0, shared
    errors = [float(row["mean_error"]) for row in read_table(work / "own" / "epochs.csv")]
    assert errors
    rates = [float(row["learning_rate"]) for row in read_table(work / "alone" / "steps.csv")]
    assert rates[:6] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.5])


def test_a_file_that_changes_between_attempts_is_said(shapes: Path, work: Path) -> None:
    recipe = write_recipe(work / "own.yaml", shapes, **OWN, train__max_steps=6)
    assert command("train", recipe, "--run", "own", cwd=work).code == 0
    again = ("train", recipe, "--run", "own", "--set", "train.max_steps=9")
    (work / "shape.py").write_text(f"{SHAPE}\n# the same in other words\n")
    done = command(*again, cwd=work)
    assert done.code == 0, done.err
    (said,) = [
        line for line in (work / "own" / "log.txt").read_text().splitlines() if "changed since the check" in line
    ]
    assert "the code of model.name changed since the checkpoint" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__options": {"chanels": 1}}, "got an unexpected keyword argument 'chanels'"),
        ({"model__name": "./net.py:Ned"}, "has no 'Ned'; did you mean Net?"),
        ({"train__loss_options": {}}, "train.loss is './parts.py:Focal': TypeError"),
        ({"train__loss": "torch.nn:CrossEntropyLoss", "train__loss_options": {}}, "which gives [] for 2 samples"),
        ({"train__schedule_options": {"teeth": 0}}, "parts.py line 26: return peak"),
        ({"train__optimizer": "torch.optim:LBFGS", "train__optimizer_options": {}}, "train.optimizer is 'torch.optim:LBFGS'"),
        ({"validate__metrics": ["./parts.py:Focal"]}, "validate.metrics has './parts.py:Focal'"),
        ({"checkpoint__metric": "top11"}, "there are top1, top5, val_loss, train_loss, mean_error"),
        ({"model__name": "./net.py:OnlyValidates"}, "which gives a NoneType for images"),
        ({"model__name": "./net.py:Spare"}, "whose parameter spare.weight receives no gradient: it would never be trained"),
        ({"model__name": "./net.py:Nothing"}, "the model has no parameters that are trained"),
        ({"model__name": "nowhere.net:Net"}, "model.name is 'nowhere.net:Net': no module 'nowhere' is installed"),
        ({"views__small__transform": "./darkr.py:darker"}, "did you mean darker.py?"),
        ({"views__small__transform": "./darker.py:drker"}, "views.small.transform is './darker.py:drker'"),
        ({"views__small__transform_options": {"more": 1}}, "got an unexpected keyword argument 'more'"),
        ({"views__small__transform": "./darker.py:cut"}, "returned uint8 (3, 4, 16); it must return uint8 (3, 16, 16)"),
        ({"views__small__transform": "./darker.py:gone"}, "returned NoneType; it must"),
        ({"views__small__transform": "./darker.py:stops"}, "raise SystemExit(3): SystemExit: 3"),
        ({"views__small__transform": "./darker.py:beyond"}, "return image[7]: IndexError"),
        ({"views__plain__transform": "./darker.py:gone", "views__plain__transform_options": {"most": 1}}, "views.plain.transform"),
        ({"model__weights": "no.pth"}, "no weights at no.pth"),
        ({"model__freeze": ["boddy"]}, "model.freeze has 'boddy', which is no part of the model; did you mean body"),
        ({"model__freeze": ["*"]}, "which is all of the model"),
        ({"train__groups": [{"match": "neck"}]}, "train.groups.0.match has 'neck', which is no part of the model"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_nothing_is_written(shapes: Path, work: Path, changes: dict, said: str) -> None:
    recipe = write_recipe(work / "own.yaml", shapes, **(OWN | changes))
    done = command("train", recipe, "--run", "own", cwd=work)
    assert done.code == 2, done.err
    assert said in done.error_line
    assert not (work / "own").exists()


@pytest.mark.parametrize("ranks", [{}, RANKS], ids=["alone", "ranks"])
def test_an_error_while_training_shows_the_users_lines_alone(shapes: Path, work: Path, ranks: dict) -> None:
    text = PARTS.replace(
        "        losses = F",
        '        self.calls = getattr(self, "calls", 0) + 1\n        check(self)\n        losses = F',
    )
    text += "\n\ndef check(loss):\n    if loss.calls > 4:\n        raise ValueError('too often')\n"
    (work / "parts.py").write_text(text)
    recipe = write_recipe(work / "own.yaml", shapes, **OWN, **ranks)
    done = command("train", recipe, "--run", "own", cwd=work)
    assert done.code == 1
    assert "train.loss is './parts.py:Focal': " in done.last_line
    assert "raise ValueError('too often'): ValueError: too often" in done.last_line
    assert "check(self)" in done.err
    assert "flatout/engine" not in done.err
    assert json.loads((work / "own" / "summary.json").read_text())["status"] == "failed"
