"""Verdicts on runs that were really trained: beside a quota, neighbours and ranks, and on labels that teach nothing."""

import json
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.commands.explain import explain
from flatout.data.source.shapes import make_shapes
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.verdict import Explanation
from flatout.runs import read_run
from ranks import places
from training import DEADLINE_SECONDS, recipe

FORKS = multiprocessing.get_context("forkserver")
CPU_CGROUP = Path("/sys/fs/cgroup/cpu")
LEARNING = {"train__label_smoothing": 0.0, "validate__every_epochs": 1, "checkpoint__every_steps": None}


def train(values: dict[str, Any], run: str, cgroup: str | None, core: int | None, place: dict[str, str]) -> None:
    """In a process of its own, which joins its cgroup and takes to its core before it looks at the machine."""
    os.environ.update(place)
    if cgroup is not None:
        (Path(cgroup) / "tasks").write_text(str(os.getpid()))
    if core is not None:
        os.sched_setaffinity(0, {core})
    from flatout.commands.train import train_run
    from flatout.errors import FlatoutError

    try:
        train_run(values, {}, run)
    except FlatoutError as error:
        if "not finite" not in str(error) and "loss is" not in str(error):
            raise


def compute(core: int) -> None:
    os.sched_setaffinity(0, {core})
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        sum(range(10**5))


def trained(
    values: dict[str, Any], run: Path, cgroup: str | None = None, core: int | None = None, world: int = 1
) -> Path:
    ranks = [FORKS.Process(target=train, args=(values, str(run), cgroup, core, place)) for place in places(world)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(DEADLINE_SECONDS)
        assert each.exitcode == 0
    return run


@contextmanager
def quota(cores: float) -> Iterator[str]:
    folder = CPU_CGROUP / f"flatout-test-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "cpu.cfs_period_us").write_text("100000")
        (folder / "cpu.cfs_quota_us").write_text(str(round(cores * 100_000)))
        yield str(folder)
    finally:
        folder.rmdir()


def shares_add_up(explained: Explanation) -> bool:
    return abs(sum(explained.shares.values()) - 1) < 0.02 and all(
        0 <= share <= 1 for share in explained.shares.values()
    )


def titles(explained: Explanation) -> str:
    return " | ".join(finding.title for finding in explained.findings)


@pytest.mark.skipif(
    not os.access(CPU_CGROUP / "cpu.cfs_quota_us", os.W_OK) or os.geteuid() != 0,
    reason="no cgroup with a CPU quota here",
)
def test_a_quota_is_named_with_what_it_withholds(shapes: Path, tmp_path: Path) -> None:
    with quota(0.15) as cgroup:
        run = trained(recipe(shapes, train__max_steps=20, monitor__interval_seconds=0.25), tmp_path / "run", cgroup)
    signals, explained = read_signals(read_run(run)), explain(run)
    assert signals.host.quota_cores == pytest.approx(0.15)
    assert all(row.throttled_cores is not None for row in signals.host.rows)
    assert explained.cause == "host"
    assert "a CPU quota of 0.15 cores" in explained.verdict
    assert shares_add_up(explained)


def test_a_neighbour_on_the_same_core_is_named_and_no_part_is_blamed_for_it(shapes: Path, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    neighbours = [FORKS.Process(target=compute, args=(core,), daemon=True) for _ in range(2)]
    for each in neighbours:
        each.start()
    try:
        run = trained(recipe(shapes, monitor__interval_seconds=0.25), tmp_path / "run", core=core)
    finally:
        for each in neighbours:
            each.kill()
            each.join()
    signals, explained = read_signals(read_run(run)), explain(run)
    assert signals.contention.holders.neighbours > 0.5
    assert explained.cause == "host"
    assert "other processes" in explained.verdict
    parts = ("forward", "backward", "optimizer")  # a short one alone may have met nobody
    assert all(signals.net(part) <= signals.time.part(part) for part in parts)
    assert sum(map(signals.net, parts)) < sum(map(signals.time.part, parts))
    assert shares_add_up(explained)


def test_ranks_of_one_machine_are_one_run_and_have_no_port(shapes: Path, tmp_path: Path) -> None:
    values = recipe(shapes, parallel={"mode": "ddp", "devices": 2}, monitor__interval_seconds=0.25)
    run = trained(values, tmp_path / "run", world=2)
    signals, explained = read_signals(read_run(run)), explain(run)
    assert signals.ranks_near == 2
    assert signals.host.machine_cores == len(os.sched_getaffinity(0))
    assert signals.ranks is not None
    assert (signals.ranks.communication_seconds or 0.0) <= signals.step.seconds
    assert "port" not in titles(explained)
    assert shares_add_up(explained)


def relabelled(folder: Path, split: str, label: Callable[[str, int], str]) -> Path:
    """The files of a split in other class folders: `label` of the class and the number of the file."""
    for _ in make_shapes(folder, 4, 60, 16, 40):
        pass
    files = sorted((folder / split).glob("*/*"))
    classes = sorted({path.parent.name for path in files})
    moves = [
        (path, folder / split / label(path.parent.name, n) / f"moved-{n}{path.suffix}") for n, path in enumerate(files)
    ]
    for path, target in moves:
        path.rename(target)
    assert classes == sorted(path.name for path in (folder / split).iterdir())
    return folder


@pytest.fixture(scope="module")
def class_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("names")
    for _ in make_shapes(folder / "set", 4, 1, 16, 1):
        pass
    return sorted(path.name for path in (folder / "set" / "train").iterdir())


def test_labels_that_are_permuted_in_val_are_told_from_random_ones(class_names: list[str], tmp_path: Path) -> None:
    turned = dict(zip(class_names, [*class_names[1:], class_names[0]], strict=True))
    data = relabelled(tmp_path / "turned", "val", lambda name, _: turned[name])
    run = trained(recipe(data, **LEARNING, train__epochs=8, train__lr=0.1, data__batch_size=16), tmp_path / "run")
    explained = explain(run)
    assert explained.cause == "labels", explained.verdict
    assert "the labels of train and val do not mean the same" in explained.verdict


def test_random_labels_are_no_mismatch_stated_as_a_fact(class_names: list[str], tmp_path: Path) -> None:
    chance = random.Random(0)
    data = relabelled(tmp_path / "random", "train", lambda *_: chance.choice(class_names))
    run = trained(recipe(data, **LEARNING, train__epochs=14, train__lr=0.1, data__batch_size=16), tmp_path / "run")
    explained = explain(run)
    last = read_run(run).epochs[-1]
    assert "label-mismatch" not in [finding.id for finding in explained.findings], (explained.verdict, last)
    assert not any("the labels of train and val do not match" in finding.title for finding in explained.findings)
    assert explained.cause in ("labels", "learning"), (explained.verdict, last)


def test_a_learning_rate_that_explodes_is_no_clean_bill(shapes: Path, tmp_path: Path) -> None:
    values = recipe(shapes, **LEARNING, train__lr=30.0, train__epochs=4, train__warmup_epochs=0)
    explained = explain(trained(values, tmp_path / "run"))
    assert not explained.healthy
    assert explained.cause in ("diverged", "learning"), explained.verdict


def test_a_killed_run_is_explained_with_its_dollars(uninterrupted: Path, tmp_path: Path) -> None:
    """From its files alone: nothing but explain has looked at it."""
    run = tmp_path / "killed"
    shutil.copytree(uninterrupted, run)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "running", "cost": None}))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["cost"]["usd_per_hour"] = 36.0
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "cost.json").unlink(missing_ok=True)
    assert read_signals(read_run(run)).cost.usd_per_hour == pytest.approx(36.0, rel=0.01)
