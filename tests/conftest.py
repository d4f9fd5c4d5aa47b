"""Fixtures that several rooms' tests share. Heavy imports stay inside, so that a unit test does not pay for them."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.fixtures import _no_cloud_but_loopback, _proxy_process, bucket, fault_proxy, s3_server  # noqa: F401


@pytest.fixture(autouse=True)
def _empty_working_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test meets a `runs/` or `data/` that lies about in the repository, and none leaves one there."""
    with tempfile.TemporaryDirectory(prefix="flatout-cwd-") as folder:
        monkeypatch.chdir(folder)
        yield


_kept = tempfile.TemporaryDirectory(prefix="flatout-cache-")
os.environ["XDG_CACHE_HOME"] = _kept.name  # what tests keep is not the developer's
# `nohup make test` ignores it, and so would every command that a test starts
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does; inherited by the server that forks commands


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny dataset of tests/training.py; read only."""
    from training import make_dataset

    return make_dataset(tmp_path_factory.mktemp("data") / "shapes")


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny parallel text of tests/training.py; read only."""
    from training import make_sentences

    return make_sentences(tmp_path_factory.mktemp("data") / "sentences")


@pytest.fixture(scope="session", params=["images", "text"])
def samples(request: pytest.FixtureRequest) -> Path:
    """Each task's tiny dataset in turn: what holds for one must hold for the other."""
    data: Path = request.getfixturevalue({"images": "shapes", "text": "sentences"}[request.param])
    return data


@pytest.fixture(scope="session")
def uninterrupted(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the tiny recipe trained in one go, by the installed command; read only."""
    from training import installed_command, write_recipe

    folder = tmp_path_factory.mktemp("uninterrupted")
    config = write_recipe(folder / "tiny.yaml", shapes)
    finished = installed_command("train", config, cwd=folder)
    assert finished.code == 0, finished.err
    return folder / "runs" / "tiny"


@pytest.fixture(scope="session")
def _stopped(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training import STEPS_PER_EPOCH, row_count, start, wait_until, write_recipe

    folder = tmp_path_factory.mktemp("stopped")
    config = write_recipe(folder / "tiny.yaml", shapes)
    running = start("train", config, cwd=folder)
    run = folder / "runs" / "tiny"
    wait_until(lambda: row_count(run) >= STEPS_PER_EPOCH + 4 or not running.running, "the middle of the second epoch")
    running.send(signal.SIGTERM)
    assert running.wait().code == 130
    assert row_count(run) % STEPS_PER_EPOCH, "stopped at the end of an epoch"
    return folder


@pytest.fixture
def half(_stopped: Path, work: Path) -> Path:
    """`work` with tiny.yaml and its run, stopped by SIGTERM in the middle of the second epoch."""
    shutil.copytree(_stopped, work, symlinks=True, dirs_exist_ok=True)
    return work / "runs" / "tiny"


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """For tests of many tiny operations: two threads on busy cores would wait for each other at every one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder to give commands in; what a command prints is kept beside it, not inside."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
