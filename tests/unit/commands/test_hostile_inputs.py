"""Files and names that were made to hurt: each is one line, in bounded time and memory. The fuzzer found most of them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flatout.cli.main import about_a_file
from flatout.commands.prices import import_catalogue
from flatout.commands.simulate import simulate
from flatout.commands.traced_model import keep, read_kept
from flatout.config.sweep import load_sweep
from flatout.data.source.array_file import read_arrays, write_arrays
from flatout.data.text.vocabulary import read_vocabulary
from flatout.errors import ConfigError, DataError, FlatoutError, StorageError
from flatout.runs import read_run
from flatout.runs.foreign import read_foreign
from flatout.storage.local import FolderStore
from flatout.storage.protocol import Range
from training import command

LONG = "x" * 300
ENDLESS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "four terabytes": lambda path: (path.touch(), os.truncate(path, 2**42)),
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "catalogue.csv": lambda path: import_catalogue(path, path.with_name("new.yaml"), None),  # type: ignore[arg-type]
    "metrics.csv": read_foreign,
    "x.tfevents.1": lambda path: read_foreign(path.parent),
    "vocabulary.json": read_vocabulary,
    "trace.jsonl": simulate,
    "plan.yaml": simulate,
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("name", READERS)
def test_what_never_ends_is_not_read(tmp_path: Path, name: str, kind: str) -> None:
    ENDLESS[kind](tmp_path / name)
    with pytest.raises(FlatoutError) as caught:
        READERS[name](tmp_path / name)
    assert len(str(caught.value)) < 1000


def test_a_pipe_among_the_files_of_a_dataset(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.index")
    (answer,) = FolderStore(str(tmp_path)).read_many([Range("train.index")])
    assert isinstance(answer, StorageError)


@pytest.mark.parametrize("words", [("runs",), ("report",), ("train",), ("evaluate",), ("init",), ("sweep",)])
def test_a_name_that_the_system_refuses_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = command(*words, LONG, cwd=tmp_path)
    assert (done.code, len(done.err.splitlines())) == (2, 1), done.err
    assert LONG[:200] in done.err


def test_what_may_be_a_mistake_of_our_own_is_not_hidden() -> None:
    assert about_a_file(FileNotFoundError(2, "No such file", "x")) is None
    assert about_a_file(OSError(36, "File name too long")) is None
    assert about_a_file(PermissionError(13, "Permission denied", "x")) == "cannot use 'x': Permission denied"


@pytest.mark.parametrize("value", ["1.5", "[1]", "x", f"{{recipe: {LONG}}}"])
@pytest.mark.parametrize("key", ["set", "over", "recipe"])
def test_a_sweep_of_other_things(tmp_path: Path, key: str, value: str) -> None:
    values = {"recipe": "tiny.yaml", "over": "{train.lr: [0.1, 0.2]}", key: value}
    (tmp_path / "sweep.yaml").write_text("".join(f"{name}: {text}\n" for name, text in values.items()))
    with pytest.raises((ConfigError, OSError)) as caught:
        load_sweep(tmp_path / "sweep.yaml", {}, [])
    assert not isinstance(caught.value, OSError) or about_a_file(caught.value) is not None


WORLD = {
    "jobs": [{"count": 2, "step_seconds": 0.1, "epochs": 2}],
    "producers": {"hands": 2, "make_seconds": 0.05},
    "batches_per_epoch": 5,
    "batch_bytes": 1000,
    "cache_bytes": 100_000,
}


@pytest.mark.parametrize(
    "change",
    [
        {"batches_per_epoch": 10**9},
        {"jobs": [{"step_seconds": 1e9}]},
        {"jobs": [{"step_seconds": 0.1, "start_seconds": 1e300}]},
        {"producers": {"hands": 10**9, "make_seconds": 1}},
        {"producers": {"hands": 2, "make_seconds": 2**63}},
        {"producers": {"hands": 2, "make_seconds": 1, "cold_seconds": 1e12}},
        {"handover_seconds": 1e9},
    ],
)
def test_a_simulation_without_end_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(json.dumps(WORLD))
    assert simulate(path)["jobs"] == 2
    path.write_text(json.dumps({**WORLD, **change}))
    with pytest.raises(ConfigError):
        simulate(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"policy": 5}', '{"policy": {"x": 1}}', '{"policy": {}}\n[1]', "{"])
def test_a_trace_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(ConfigError, match="is not a trace"):
        simulate(tmp_path / "trace.jsonl")


def test_arrays_that_unfold_without_end_are_none(tmp_path: Path) -> None:
    """The digest at their beginning is theirs: whoever made them made that, too."""
    import hashlib
    import io

    path = tmp_path / "identity.npz"
    write_arrays(path, {"names": np.zeros(9, np.uint8)})
    assert read_arrays(path) is not None
    packed = io.BytesIO()
    np.savez_compressed(packed, names=np.zeros(10**8, np.uint8))
    path.write_bytes(hashlib.sha256(packed.getbuffer()).digest() + packed.getvalue())
    assert read_arrays(path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_arrays(path) is None


def test_figures_that_were_damaged_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "kept/figures.json"
    assert read_kept(path) == {}
    keep(path, {"decode": 1.5})
    assert read_kept(path) == {"decode": 1.5}
    for damaged in (path.read_text().replace("1.5", "2.5"), path.read_text()[:-1], '{"decode": 1.5}', ""):
        path.write_text(damaged)
        assert read_kept(path) == {}


def test_a_run_whose_shared_batches_are_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "summary.json").write_text('{"status": "completed", "shared": {"hits": 3, "local": "x"}}')
    with pytest.raises(FlatoutError, match=r"shared\.local is 'x', expected a number"):
        read_run(tmp_path)


def test_a_folder_that_cannot_be_searched_for_logs(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        read_foreign(Path("/proc/self/task"))
