"""Tiny training runs for tests: a recipe of 30-millisecond steps, and the command line in processes that can be killed.

Commands are forked from a server that has imported torch once: a start costs 0.1 s instead of 3, and a kill -9 hits
a process of its own as it would in earnest. `installed_command` starts the real executable where that matters.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from flatout.data.source.shapes import make_shapes
from flatout.data.text.vocabulary import read_vocabulary
from flatout.runs.tables import effective_rows, read_table
from flatout.sampling import balanced_order, batch_count, batch_ids, epoch_order, ids_digest
from flatout.sampling.token_batches import batch_of, batch_order, cut_by_tokens, token_order

CLASSES, SAMPLES_PER_CLASS, BATCH_SIZE, EPOCHS = 4, 39, 8, 2
SAMPLES = CLASSES * SAMPLES_PER_CLASS
STEPS_PER_EPOCH = batch_count(SAMPLES, BATCH_SIZE)  # 20: the last batch is a short one
STEPS = EPOCHS * STEPS_PER_EPOCH
BATCH_TOKENS = 160  # of the made-up languages: about as many steps
DEADLINE_SECONDS = 600.0  # a hang, even on a machine that is busy with other things

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "pytest",
        "training",
        "flatout.commands.train",
        "flatout.commands.show",
        "flatout.commands.lr_find",
        "torch._dynamo",
        "sacrebleu",
    ]
)  # DDP and gradient checkpointing import torch._dynamo, which takes as long as torch itself


def make_dataset(folder: Path, samples_per_class: int = SAMPLES_PER_CLASS, val_per_class: int = 5) -> Path:
    for _ in make_shapes(folder, CLASSES, samples_per_class, 16, val_per_class):
        pass
    return folder


def make_sentences(folder: Path, pairs: int = SAMPLES, val_pairs: int = 12, seed: int = 0) -> Path:
    """Parallel text in two made-up languages, with a word for a word in reverse order; line 5 cannot be used."""
    chance = random.Random(seed)
    words = {first + second: second + first + "u" for first in "bdgk" for second in "aeo"}
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", pairs), ("val", val_pairs)):
        lines = [chance.choices(list(words), k=chance.randint(2, 6)) for _ in range(count)]
        translated = [[words[word] for word in reversed(line)] for line in lines]
        if split == "train":
            lines[4] = []
        for language, texts in (("aa", lines), ("bb", translated)):
            (folder / f"{split}.{language}").write_text("".join(" ".join(text) + "\n" for text in texts))
    return folder


def recipe(data: Path, **changes: Any) -> dict[str, Any]:
    """A complete recipe; `changes` are dotted keys with `__` for the dot: train__lr=0.1."""
    values = _text_recipe(data) if (data / "train.aa").exists() else _image_recipe(data)
    for key, value in changes.items():
        section = values
        *parents, last = key.split("__")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return values


def _text_recipe(data: Path) -> dict[str, Any]:
    return {
        "name": "tiny",
        "task": "translation",
        "device": "cpu",
        "threads": 1,
        "data": {
            "path": str(data), "source_language": "aa", "target_language": "bb", "batch_tokens": BATCH_TOKENS,
            "max_tokens": 24, "vocabulary": {"size": 300}, "workers": 0,
        },
        "model": {"name": "transformer-small", "width": 0.0625},
        "train": {"epochs": EPOCHS, "lr": 0.01, "warmup_steps": 5},
        "checkpoint": {"every_steps": 3},
    }  # fmt: skip


def _image_recipe(data: Path) -> dict[str, Any]:
    return {
        "name": "tiny",
        "device": "cpu",
        "threads": 1,  # two compute threads on shared cores wait for each other
        "data": {"path": str(data), "view": "small", "eval_view": "plain", "batch_size": BATCH_SIZE, "workers": 0},
        "views": {"small": {"base": "train-64", "size": 16, "pad": 2}, "plain": {"base": "eval-64", "size": 16}},
        "model": {"name": "resnet18", "stem": "small", "width": 0.125},
        "train": {"epochs": EPOCHS, "lr": 0.05},
        "checkpoint": {"every_steps": 3},
    }


def write_recipe(path: Path, data: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(recipe(data, **changes)), encoding="utf-8")
    return path


# Commands


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line a user error is: nothing before it, nothing after it."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"expected one line on stderr, got:\n{self.err}"
        assert lines[0].startswith("flatout: "), lines[0]
        return lines[0]

    @property
    def last_line(self) -> str:
        """What ends a run that had begun: the cause comes after the notes on its progress."""
        assert "Traceback" not in self.err, self.err
        return self.err.splitlines()[-1]


class Command:
    """`flatout ARGUMENTS`, started and perhaps still running."""

    def __init__(self, arguments: tuple[object, ...], cwd: Path, environment: Mapping[str, str] | None = None) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="command-", dir=cwd.parent))
        texts = [str(each) for each in arguments]
        self._process = _FORKS.Process(
            target=_run_command, args=(texts, str(cwd), dict(environment or {}), str(self._output)), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.send(signal.SIGKILL)
        assert self.wait().code == -signal.SIGKILL

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def wait(self, deadline_seconds: float = DEADLINE_SECONDS) -> Finished:
        self._process.join(deadline_seconds)
        if self._process.exitcode is None:
            self.send(signal.SIGKILL)
            self._process.join()
            raise AssertionError(f"still running after {deadline_seconds} s:\n{self._read('err')}")
        finished = Finished(self._process.exitcode, self._read("out"), self._read("err"))
        shutil.rmtree(self._output, ignore_errors=True)
        return finished

    def _read(self, name: str) -> str:
        path = self._output / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _run_command(arguments: list[str], cwd: str, environment: dict[str, str], output: str) -> None:
    os.chdir(cwd)
    os.environ.update({"COLUMNS": "200", **environment})
    for number, name in ((1, "out"), (2, "err")):
        fd = os.open(f"{output}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = ["flatout", *arguments]
    from flatout.cli.main import run

    run()


def start(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Command:
    return Command(arguments, cwd, environment)


def command(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Finished:
    return start(*arguments, cwd=cwd, environment=environment).wait()


def installed_command(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Finished:
    """The executable a user types, imports and all."""
    done = subprocess.run(
        [Path(sys.executable).with_name("flatout"), *map(str, arguments)],
        cwd=cwd, env={**os.environ, "COLUMNS": "200", **(environment or {})}, capture_output=True, text=True,
        timeout=DEADLINE_SECONDS, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


@contextmanager
def forked(target: Callable[..., None], *arguments: object) -> Iterator[Any]:
    """A function of a test module in a process of its own; killed at the end if it has not ended."""
    process = _FORKS.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def wait_until(
    condition: Callable[[], Any], what: str, deadline_seconds: float = DEADLINE_SECONDS, pause_seconds: float = 0.005
) -> Any:
    """The condition's first true value; polled, with a deadline."""
    deadline = time.monotonic() + deadline_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {deadline_seconds:g} s in vain: {what}"
        time.sleep(pause_seconds)
    return value


# What a run left behind


def row_count(run: Path) -> int:
    """Whole rows of steps.csv, superseded ones included."""
    path = run / "steps.csv"
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def temporaries(run: Path) -> list[str]:
    """Checkpoints being written now, or left by a kill."""
    try:
        return [name for name in os.listdir(run / "checkpoints") if name.startswith("step-") and name.endswith(".tmp")]
    except FileNotFoundError:
        return []


def checkpoints(run: Path) -> list[Path]:
    """Oldest first."""
    return sorted((run / "checkpoints").glob("step-*.safetensors"))


def summary(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return values


def trained(run: Path) -> list[tuple[str, ...]]:
    """Every step that counts: all of its row that does not depend on clocks and attempts."""
    names = ("step", "epoch", "batch_index", "samples", "samples_digest", "loss", "learning_rate")
    return [tuple(row[name] for name in names) for row in effective_rows(read_table(run / "steps.csv"), "step")]


def expected_ledger(
    samples: int = SAMPLES, batch_size: int = BATCH_SIZE, epochs: int = EPOCHS, seed: int = 0, balanced: bool = False
) -> list[tuple[str, ...]]:
    """Step, epoch, batch, sample count and digest of every step, from the pure functions alone."""
    labels = np.arange(samples) // SAMPLES_PER_CLASS
    rows: list[tuple[str, ...]] = []
    for epoch in range(epochs):
        order = balanced_order(labels, seed, epoch)[0] if balanced else epoch_order(samples, seed, epoch)
        batches = [batch_ids(order, index, batch_size) for index in range(batch_count(samples, batch_size))]
        assert sorted(sample for batch in batches for sample in batch.tolist()) == list(range(samples))
        for index, ids in enumerate(batches):
            rows.append((str(len(rows) + 1), str(epoch), str(index), str(len(ids)), ids_digest(ids)))
    return rows


def expected_text_ledger(
    run: Path, epochs: int = EPOCHS, seed: int = 0, batch_tokens: int = BATCH_TOKENS, data: Path | None = None
) -> list[tuple[str, ...]]:
    """The same for sentence pairs, from their lengths in the run's own vocabulary."""
    vocabulary = read_vocabulary(run / "vocabulary.json")
    data = data or Path(yaml.safe_load((run / "config.yaml").read_text())["data"]["path"])
    lines = [(data / f"train.{language}").read_text().splitlines() for language in ("aa", "bb")]
    usable = np.array([number for number, pair in enumerate(zip(*lines, strict=True)) if all(pair)])
    source, target = (np.array([len(row) for row in vocabulary.encode(texts)])[usable] for texts in lines)
    cut = cut_by_tokens(source + 1, target + 2, batch_tokens)
    rows: list[tuple[str, ...]] = []
    for epoch in range(epochs):
        order = token_order(cut, seed, epoch)
        batches = [usable[batch_of(cut, order, number)] for number in batch_order(cut, seed, epoch).tolist()]
        assert sorted(sample for batch in batches for sample in batch.tolist()) == usable.tolist()
        for index, ids in enumerate(batches):
            rows.append((str(len(rows) + 1), str(epoch), str(index), str(len(ids)), ids_digest(ids)))
    return rows


def assert_ledger(run: Path, **sizes: int) -> None:
    """Every sample exactly once per epoch, in the order of the pure functions; and every second has an owner."""
    text = (run / "vocabulary.json").exists()
    expected = expected_text_ledger(run, **sizes) if text else expected_ledger(**sizes)
    assert [row[:5] for row in trained(run)] == expected
    assert_adds_up(run)


def assert_adds_up(run: Path) -> None:
    time_of_run = summary(run)["time"]
    wall, parts = time_of_run["wall_seconds"], time_of_run["parts"]
    assert abs(sum(parts.values()) - wall) <= 1e-3 * wall, parts
    assert all(seconds >= 0 for seconds in parts.values()), parts
    if wall >= 30 and ((summary(run)["host"] or {}).get("process_cores_mean") or 0.0) > 0.8:
        # tiny runs take that long only where others have the cores; what waits for one between two spans is nobody's
        assert parts["unattributed"] < 0.02 * wall, parts


def assert_same_training(run: Path, reference: Path) -> None:
    """Completed, and equal to the bit: weights, optimizer and random state, losses, validation figures."""
    assert_adds_up(run)
    ended, wanted = summary(run), summary(reference)
    assert (ended["status"], ended["cause"]) == ("completed", None)
    assert trained(run) == trained(reference)
    assert ended["state_digest"] is not None
    assert ended["state_digest"] == wanted["state_digest"]
    assert ended["accuracy"] == wanted["accuracy"]
    assert ended["samples_seen"] == wanted["samples_seen"]


def snapshot(*folders: Path) -> dict[str, str]:
    """Everything under the folders: names, kinds, contents."""
    found = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink():
                found[str(path)] = f"-> {os.readlink(path)}"
            elif path.is_file():  # the lock names its last holder, whatever became of that
                found[str(path)] = "" if path.name == "lock" else hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[str(path)] = "folder"
    return found
