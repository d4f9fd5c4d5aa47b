"""Small parts of the use cases: when to stop, what is shown, what a library user gets."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flatout
from flatout.commands.show import show_config
from flatout.config.schema import StopConfig
from flatout.data.source.shapes import make_shapes
from flatout.errors import ConfigError, DataError
from flatout.training.display import step_figures
from flatout.training.stopping import StopSignals, stop_reason


@pytest.mark.parametrize(
    ("stop", "seconds", "spent_usd", "why"),
    [
        ({}, 1e9, 100.0, None),
        ({"max_seconds": 60}, 59.0, None, None),
        ({"max_seconds": 60}, 60.0, None, "reached stop.max_seconds = 1 min 00 s"),
        ({"max_usd": 2.0}, 3600.0, 1.99, None),
        ({"max_usd": 2.0}, 3600.0, 2.0, "reached stop.max_usd = $2.00"),
        ({"max_usd": 2.0}, 1e9, None, None),
    ],
)
def test_limits_of_time_and_money(
    stop: dict[str, float], seconds: float, spent_usd: float | None, why: str | None
) -> None:
    assert stop_reason(StopConfig(**stop), StopSignals(), lambda: seconds, lambda: spent_usd) == why


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_asks_for_an_end_and_says_how_to_go_on(number: signal.Signals, name: str) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert stop_reason(StopConfig(), signals, lambda: 0.0, lambda: None) is None
        os.kill(os.getpid(), number)
        assert stop_reason(StopConfig(), signals, lambda: 0.0, lambda: None) == f"{name}; the same command resumes"
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_ends_at_once() -> None:
    script = (
        "import os, signal; from flatout.training.stopping import StopSignals\n"
        "with StopSignals():\n"
        "    for _ in range(2): os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (130, b"")


def test_figures_beside_the_bar() -> None:
    assert step_figures(0.1234, 812.4, 0.256, 1.5) == "loss 0.123  812 samples/s  data wait 26 %  $1.50"
    assert step_figures(None, 812.4, 0.0, None) == "812 samples/s  data wait 0 %"


def test_a_configuration_is_shown_with_origins(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("train: {epochs: 3}\n")
    shown = show_config(path, ["train.lr=0.2"])
    assert shown["train.epochs"] == {"value": 3, "origin": str(path)}
    assert shown["train.lr"] == {"value": 0.2, "origin": "--set"}
    assert shown["data.cache"] == {"value": "auto", "origin": "default"}


# --- as a library ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    list(make_shapes(folder, 2, 5, 16))
    return folder


def test_importing_flatout_does_not_import_torch() -> None:
    script = "import sys, flatout; flatout.Run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        flatout.nothing  # noqa: B018


def test_batches_for_a_loop_of_ones_own(shapes: Path) -> None:
    with flatout.open_batches(shapes, view="train-64", batch_size=4, seed=3, workers=1, cache="off") as source:
        batches = list(source.epoch(0))
    assert [tuple(batch.images.shape) for batch in batches] == [(4, 3, 64, 64), (4, 3, 64, 64), (2, 3, 64, 64)]
    assert {batch.images.dtype for batch in batches} == {torch.uint8}
    assert {batch.labels.dtype for batch in batches} == {batch.sample_ids.dtype for batch in batches} == {torch.int64}
    ids = torch.cat([batch.sample_ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(10))
    assert torch.equal(torch.cat([batch.labels for batch in batches]), ids // 5)
    normalised = flatout.normalize(batches[0].images)
    assert normalised.dtype == torch.float32
    assert normalised.shape == batches[0].images.shape


def test_the_same_seed_gives_the_same_batches(shapes: Path) -> None:
    def images(seed: int) -> torch.Tensor:
        with flatout.open_batches(shapes, view="train-64", batch_size=10, seed=seed, workers=0, cache="off") as source:
            (batch,) = source.epoch(1)
            return batch.images

    assert torch.equal(images(3), images(3))
    assert not torch.equal(images(3), images(4))


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"batch_size": 11}, DataError, "batch_size is 11 but the split has 10 samples"),
        ({"split": "tset"}, DataError, "split 'tset' is not there; use train or val"),
        ({"view": "train-65"}, ConfigError, "did you mean train-64"),
        ({"holdot": 0.2}, ConfigError, r"unknown key data\.holdot; did you mean data\.holdout"),
        ({"workers": "many"}, ConfigError, r"data\.workers is 'many'"),
    ],
)
def test_wrong_arguments_are_one_line(
    shapes: Path, wrong: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        flatout.open_batches(shapes, **{"view": "train-64", "batch_size": 4, **wrong})
