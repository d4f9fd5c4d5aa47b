"""The five stories in rehearsal: each recipe as it ships, with its ranks, on an emulated device at the story's pace.

The data is small and made up, in the layout of the real one. What is changed beside the device and the path is named
with each story; everything else in the recipe is used as it stands.
"""

import io
import itertools
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from flatout.config.shipped import FOLDER
from servers.s3 import S3Server

EMULATED = {"device": "emulated"}
ENDPOINT = {
    "endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """A recipe or a suite, the data it needs, and where it is started."""

    name: str
    data: str  # key of DATA
    changes: Mapping[str, object] = field(default_factory=dict)
    nodes: int = 1
    per_node: int = 1
    suite: bool = False
    refused: tuple[str, ...] = ()  # experiments that need real GPUs, and say so
    predicted: tuple[str, ...] = ()  # experiments whose epoch is predicted from the first one's


STORIES = (
    Story("tiny200-resnet18-t4-shared", "tiny", EMULATED),
    Story("tiny200-resnet18-t4-jobs", "tiny", {**EMULATED, "train.epochs": 1}, suite=True),
    Story(
        "wmt16-transformer-base-2x2",
        "wmt",
        # real steps on the CPU: sentences cannot be emulated
        {"device": "cpu", "threads": 1, "model.width": 0.125, "data.vocabulary.size": 600, "data.batch_tokens": 512,
         "train.max_steps": 6},
        nodes=2,
        per_node=2,
    ),
    Story("imagenet-resnet18-g5", "imagenet", {**EMULATED, "train.epochs": 2}),
    Story("imagenet-resnet18-g5-2node", "imagenet", {**EMULATED, "train.epochs": 2}, nodes=2),
    Story("imagenet100-resnet50-s3", "bucket", {**EMULATED, "train.epochs": 2, "data.classes": "hundred.txt"}),
    Story("imagenet-resnet50-90ep", "imagenet", {**EMULATED, "train.epochs": 2}),
    Story(
        "tiny200-resnet18-2gpu", "tiny", EMULATED, suite=True, refused=("DP",),
        predicted=("workers", "checkpointing", "DDP"),
    ),
)  # fmt: skip


# Data in the real layouts


def _jpegs(width: int, height: int) -> Iterator[bytes]:
    """A few different pictures, over and over."""
    made = []
    for seed in range(8):
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((width, height)).save(file, "JPEG", quality=85)
        made.append(file.getvalue())
    return itertools.cycle(made)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def make_tiny(folder: Path) -> Path:
    """Tiny-ImageNet-200 as it comes: images/ in every class, one folder of val with its annotations; 16 + 1 each."""
    pictures, lines = _jpegs(64, 64), []
    for label in range(200):
        wnid = f"n{label:08d}"
        for number in range(16):
            _write(folder / f"train/{wnid}/images/{wnid}_{number}.JPEG", next(pictures))
        _write(folder / f"val/images/val_{label}.JPEG", next(pictures))
        lines.append(f"val_{label}.JPEG\t{wnid}\t0\t0\t63\t63\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    return folder


def make_imagenet(folder: Path, classes: int = 1000, each: int = 1) -> Path:
    """train/<wnid>/ and val/<wnid>/, of pictures that are smaller than ImageNet's."""
    pictures = _jpegs(120, 90)
    for label in range(classes):
        wnid = f"n{label:08d}"
        for number in range(each):
            _write(folder / f"train/{wnid}/{wnid}_{number}.JPEG", next(pictures))
        _write(folder / f"val/{wnid}/ILSVRC2012_val_{label:08d}.JPEG", next(pictures))
    return folder


def make_wmt(folder: Path) -> Path:
    chance = random.Random(0)
    words = {first + second: second + first + "u" for first in "bdgklm" for second in ("a", "e", "o", "ei")}
    folder.mkdir(parents=True)
    for split, count in (("train", 1500), ("val", 8)):
        lines = [chance.choices(list(words), k=chance.randint(3, 9)) for _ in range(count)]
        for language, texts in (("en", lines), ("de", [[words[word] for word in line] for line in lines])):
            (folder / f"{split}.{language}").write_text("".join(" ".join(text) + "\n" for text in texts))
    return folder


DATA: dict[str, Callable[[Path], Path]] = {"tiny": make_tiny, "imagenet": make_imagenet, "wmt": make_wmt}


@contextmanager
def data_for(story: Story, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Path of its data and the environment that leads to it; made once, kept in `folder`."""
    if story.data != "bucket":
        target = folder / story.data
        yield str(target if target.exists() else DATA[story.data](target)), {}
        return
    target = folder / "buckets" / "images" / "imagenet"
    if not target.exists():
        make_imagenet(target, classes=120, each=4)  # of which the recipe takes a hundred
    (folder / "work/hundred.txt").write_text("".join(f"n{label:08d}\n" for label in range(10, 110)))
    with S3Server(folder / "buckets") as server:
        options = server.options()
        yield "s3://images/imagenet", {variable: options[option] for option, variable in ENDPOINT.items()}


# Commands


@dataclass(frozen=True)
class Said:
    code: int
    text: str


def _settings(story: Story, path: str) -> list[str]:
    values = {"data.path": path, **story.changes}
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _places(story: Story) -> list[dict[str, str]]:
    """The environment of each rank as torchrun sets it on so many machines; a story without ranks has none."""
    ranks = story.nodes * story.per_node
    if ranks == 1:
        return [{}]
    shared = {
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": story.per_node,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _port(),
    }
    return [
        {key: str(value) for key, value in {**shared, "RANK": rank, "LOCAL_RANK": rank % story.per_node}.items()}
        for rank in range(ranks)
    ]


def flatout(words: list[str], cwd: Path, environments: list[dict[str, str]]) -> list[Said]:
    """The installed command, once for each environment, at the same time."""
    command = [str(Path(sys.executable).with_name("flatout")), *words]
    base = {**os.environ, "WANDB_MODE": "offline", "COLUMNS": "200", "XDG_CACHE_HOME": str(cwd / "cache")}
    started = [
        subprocess.Popen(
            command, cwd=cwd, env={**base, **each}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for each in environments
    ]  # fmt: skip
    texts = [process.communicate()[0] for process in started]
    return [Said(process.returncode, text) for process, text in zip(started, texts, strict=True)]


def rehearse(story: Story, folder: Path) -> list[str]:
    """Doctor, then the recipe itself; returns what went wrong, nothing where all is well."""
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    with data_for(story, folder) as (path, environment):
        settings = _settings(story, path)
        wrong = _doctor(story, settings, work, environment)
        wrong += _refusals(story, settings, work, environment)
        run = ["suite", str(_without_refused(story, work))] if story.suite else ["train", story.name]
        run += settings
        ended = flatout(run, work, [{**environment, **place} for place in _places(story)])
        judge = _judge_suite if story.suite else _judge_run
        return [*wrong, *judge(story, work / "runs" / story.name, ended)]


def _refusals(story: Story, settings: list[str], work: Path, environment: dict[str, str]) -> list[str]:
    """What needs real GPUs is refused before the first experiment, by name."""
    if not story.refused:
        return []
    (said,) = flatout(["suite", story.name, *settings], work, [environment])
    named = said.code == 2 and story.refused[0] in said.text and "several GPUs" in said.text
    return [] if named else [f"{story.refused} not refused: {said.code}: {said.text}"]


def _without_refused(story: Story, work: Path) -> Path:
    """The shipped suite with its other experiments; its file is otherwise as it ships."""
    shipped_file = FOLDER / "suites" / f"{story.name}.yaml"
    values = yaml.safe_load(shipped_file.read_text())
    values["variants"] = [each for each in values["variants"] if each["name"] not in story.refused]
    values["recipe"] = str((shipped_file.parent / values["recipe"]).resolve())
    path = work / f"{story.name}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def _doctor(story: Story, settings: list[str], work: Path, environment: dict[str, str]) -> list[str]:
    name = story.name
    if story.suite:
        name = Path(yaml.safe_load((FOLDER / "suites" / f"{name}.yaml").read_text())["recipe"]).stem
    (said,) = flatout(["doctor", name, *settings], work, [environment])
    return [] if said.code == 0 else [f"doctor ended with {said.code}: {said.text}"]


def _judge_run(story: Story, run: Path, ended: list[Said]) -> list[str]:
    wrong = [f"rank {k} ended with {said.code}: {said.text}" for k, said in enumerate(ended) if said.code != 0]
    summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
    if summary.get("status") != "completed":
        wrong.append(f"status {summary.get('status')}: {summary.get('cause')}")
    if summary.get("world_size") != story.nodes * story.per_node:
        wrong.append(f"world_size {summary.get('world_size')}")
    return wrong


def _judge_suite(story: Story, runs: Path, ended: list[Said]) -> list[str]:
    said = f"exit code {ended[0].code}: {ended[0].text}"
    if not (runs / "table.json").exists():
        return [f"no table; {said}"]
    rows = json.loads((runs / "table.json").read_text())["rows"]
    causes = {row["name"]: row["causes"] for row in rows if row["causes"]}
    untold = [row["name"] for row in rows if row["name"] in story.predicted and not row["values"]["predicted epoch"][0]]
    if untold:
        return [f"not predicted: {untold}; {said}"]
    return [f"failed: {causes}; {said}"] if causes or ended[0].code != 0 else []
