"""User code by its name: what is found, and the one line that is said where nothing is."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flatout import plugins
from flatout.config.loading import load_config
from flatout.data.pixels.transforms import apply_transform, open_transform
from flatout.data.pixels.views import View
from flatout.errors import ConfigError
from flatout.storage import open_store
from flatout.tasks.classification.models import build_model

NET = """from torch import nn

limit = 3


def Net(classes, channels=4):
    if channels > limit + 5:
        raise ValueError(f"{channels} channels are too many")
    return nn.Linear(channels, classes)


def not_a_module(classes):
    return classes
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "net.py").write_text(NET)


def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """A package that offers entry points: `group__name="module:attr"`."""
    folder = tmp_path / "offered-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    lines = []
    for key, value in points.items():
        group, name = key.split("__")
        lines.append(f"[flatout.{group}]\n{name} = {value}\n")
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._installed.cache_clear()
    monkeypatch.setattr(plugins, "_installed", plugins._installed.__wrapped__)  # forgotten with the test


def test_a_reference_is_a_file_or_a_module() -> None:
    assert all(map(plugins.is_reference, ("./net.py:Net", "/a b/net.py:Net", "package.module:Name", "module:Name")))
    assert not any(map(plugins.is_reference, ("resnet18", "s3://bucket", "net.py", "grpc://host:80", ":Name", "a:1b")))


def test_a_file_is_loaded_once_and_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = [1]\n")
    (tmp_path / "mine.py").write_text("from beside import value\n\n\ndef get():\n    return value\n")
    got = plugins.load("models", "./mine.py:get", "model.name")
    assert got() == [1]
    assert plugins.load("models", str(tmp_path / "mine.py") + ":get", "model.name") is got


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nett.py:Net", "no file {folder}/nett.py; did you mean net.py?"),
        ("./net.py:Nett", "model.name is './net.py:Nett': {folder}/net.py has no 'Nett'; did you mean Net?"),
        ("./net.py:limit", "limit is a int, not a function or class"),
        ("jsn:loads", "no module 'jsn' is installed; did you mean json?"),
        ("json.decodr:JSONDecoder", "no module 'json.decodr' is installed; did you mean decoder?"),
        ("nothing", "no installed package offers as flatout.models"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest_name(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plugins.load("models", name, "model.name")
    assert said.format(folder=tmp_path) in str(refused.value)


def test_an_error_in_the_users_file_shows_the_users_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import json\n\nvalue = json.laods('1')\n")
    with pytest.raises(
        ConfigError, match=r"broken.py line 3: value = json.laods\('1'\): AttributeError: module 'json'"
    ):
        plugins.load("models", "./broken.py:value", "model.name")
    (tmp_path / "typo.py").write_text("def f(:\n")
    with pytest.raises(ConfigError, match=r"typo.py line 1: def f\(:: SyntaxError"):
        plugins.load("models", "./typo.py:f", "model.name")
    (tmp_path / "needy.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ConfigError, match=r"needy.py line 1: import not_installed_anywhere: ModuleNotFoundError"):
        plugins.load("models", "./needy.py:f", "model.name")


def test_entry_points_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, monkeypatch, models__mine="net:Net")
    assert plugins.is_user_code("models", "mine")
    assert build_model("mine", 7).out_features == 7
    with pytest.raises(ConfigError, match="did you mean mine"):
        plugins.load("models", "mime", "model.name")


def test_two_packages_that_take_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, monkeypatch, models__mine="net:Net")
    other = tmp_path / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[flatout.models]\nmine = elsewhere:Net\n")
    with pytest.raises(ConfigError, match=r"two packages offer flatout.models 'mine'"):
        plugins.installed("models")


def test_a_model_of_ones_own_gets_the_options_and_its_errors_are_shown() -> None:
    assert build_model("./net.py:Net", 5, options={"channels": 8}).in_features == 8
    with pytest.raises(ConfigError, match=r"net.py line 8: raise ValueError.*: ValueError: 9 channels are too many"):
        build_model("./net.py:Net", 5, options={"channels": 9})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'depth'"):
        build_model("./net.py:Net", 5, options={"depth": 9})
    with pytest.raises(ConfigError, match="returned a int; it must return a module"):
        build_model("./net.py:not_a_module", 5)
    with pytest.raises(ConfigError, match="cannot recompute its activations"):
        build_model("./net.py:Net", 5, checkpointing=True)
    with pytest.raises(ConfigError, match="did you mean timm"):
        build_model("tim:resnet18", 5)


def test_options_of_a_shipped_model_are_refused_as_unused() -> None:
    load_config({"model": {"name": "./net.py:Net", "options": {"channels": 8}}})
    with pytest.raises(ConfigError, match=r"model.options.channels is 8 but nothing uses it"):
        load_config({"model": {"options": {"channels": 8}}})


def test_names_of_trackers_and_tasks_are_checked_and_references_are_not_loaded() -> None:
    config = load_config(
        {"trackers": ["tensorboard", "./no.py:Such"], "task": "no.such:task", "checkpoint": {"metric": "f1"}}
    )
    assert config.config.trackers == ("tensorboard", "./no.py:Such")
    with pytest.raises(
        ConfigError, match=r"trackers.* is 'tensorbord': input should be 'tensorboard', 'wandb' or 'mlflow'"
    ):
        load_config({"trackers": ["tensorbord"]})
    with pytest.raises(
        ConfigError, match=r"task is 'clasification': input should be 'classification' or 'translation'"
    ):
        load_config({"task": "clasification"})


def test_a_transform_draws_by_seed_epoch_and_sample_alone(tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(
        "def add(image, random):\n    image[:] = random.integers(0, 256, image.shape)\n    return image\n\n\n"
        "def wrong(image, random):\n    return image.mean(0)\n\n\ndef fails(image, random):\n    return image / nothing\n"
    )
    ids = np.array([4, 9, 2])

    def view(name: str) -> View:
        return View("mine", crop="centre", transform=f"./noise.py:{name}")

    def noise(ids: np.ndarray, seed: int = 1, epoch: int = 0) -> np.ndarray:
        images = np.zeros((len(ids), 3, 4, 4), np.uint8)
        apply_transform(view("add"), images, range(len(ids)), ids, seed, epoch)
        return images

    assert np.array_equal(noise(ids)[::-1], noise(ids[::-1]))
    assert not np.array_equal(noise(ids), noise(ids, seed=2))
    assert not np.array_equal(noise(ids), noise(ids, epoch=1))
    with pytest.raises(ConfigError, match=r"returned float64 \(4, 4\); it must return uint8 \(3, 4, 4\)"):
        apply_transform(view("wrong"), np.zeros((1, 3, 4, 4), np.uint8), [0], np.array([0]), 0, 0)
    with pytest.raises(ConfigError, match=r"sample 5: .*noise.py line 11: return image / nothing: NameError"):
        apply_transform(view("fails"), np.zeros((1, 3, 4, 4), np.uint8), [0], np.array([5]), 0, 0)


def test_another_text_of_a_transform_is_another_view(tmp_path: Path) -> None:
    def view(options: str = "", name: str = "add") -> View:
        return View("mine", crop="centre", transform=f"./noise.py:{name}", transform_options=options)

    with pytest.raises(ConfigError, match="no file"):
        view()
    (tmp_path / "noise.py").write_text("def add(image, random): return image\n")
    first = view()
    assert first.random
    digests = {
        first.digest(),
        View("mine", crop="centre").digest(),
        view('{"by": 2}').digest(),
        view(name="b").digest(),
    }
    (tmp_path / "noise.py").write_text("import beside\ndef add(image, random): return image\n")
    digests.add(view().digest())
    (tmp_path / "beside.py").write_text("LEVEL = 1\n")
    digests.add(view().digest())
    (tmp_path / "beside.py").write_text("LEVEL = 2\n")
    assert len(digests | {view().digest()}) == 7
    with pytest.raises(ConfigError, match=r"source changed while it is in use: .* start the command again"):
        open_transform(first)


def test_a_file_that_changes_is_loaded_anew_and_one_beside_it_is_refused(tmp_path: Path) -> None:
    file, beside = tmp_path / "grows.py", tmp_path / "grows_beside.py"
    for number in (1, 2):  # of one length, within the second that a compiled file is dated by
        file.write_text(f"def get(): return {number}\n")
        assert plugins.load("models", "./grows.py:get", "model.name")() == number
    file.write_text("from grows_beside import get\n")
    beside.write_text("def get(): return 3\n")
    assert plugins.load("models", "./grows.py:get", "model.name")() == 3
    beside.write_text("def get(): return 4\n")
    with pytest.raises(ConfigError, match=r"grows_beside.py changed since this process imported it; start it again"):
        plugins.load("models", "./grows.py:get", "model.name")


def test_what_a_package_imports_of_itself_is_part_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "inner/__init__", "inner/deep", "unused"):
        (package / f"{name}.py").write_text("")
    (package / "net.py").write_text("import os\nfrom .inner import deep\ndef build(): return deep\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = [plugins.source_digest("models", "own_package.net:build", "model.name")]
    for name in ("unused", "inner/deep", "net"):
        with (package / f"{name}.py").open("a") as file:
            file.write("VALUE = 1\n")
        seen.append(plugins.source_digest("models", "own_package.net:build", "model.name"))
    assert seen[0] == seen[1] != seen[2] != seen[3]


def test_an_error_shows_the_users_lines_and_none_of_ours(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("def outer():\n    return inner()\n\n\ndef inner():\n    return 1 / 0\n")
    found = plugins.load("losses", "./deep.py:outer", "train.loss")
    with pytest.raises(ConfigError) as refused, plugins.blamed("train.loss"):
        found()
    lines = "\n".join(refused.value.details)
    assert "return inner()" in lines
    assert "return 1 / 0" in lines
    assert "flatout/" not in lines
    error = plugins.own_code_error(refused.value.__cause__)
    assert error is not None
    assert str(error).startswith("train.loss is './deep.py:outer': ")
    assert plugins.own_code_error(ValueError("of nobody")) is None


def test_a_scheme_is_an_entry_point_of_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stores.py").write_text("class Store:\n    def __init__(self, url):\n        self.url = url\n")
    offer(tmp_path, monkeypatch, stores__thing="stores:Store")
    assert open_store("thing://x").url == "thing://x"
    with pytest.raises(ConfigError, match=r"data at thing://: TypeError: .* unexpected keyword argument 'reg'"):
        open_store("thing://x", reg=1)
