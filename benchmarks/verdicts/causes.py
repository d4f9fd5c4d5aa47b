"""What can be wrong with a run, each with a strength that is drawn, and the healthy jobs that it is injected into."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import scenarios

from servers.faults import Faults

EMULATED = {"emulated.base_seconds": 0.01, "emulated.seconds_per_sample": 0.0007, "train.epochs": 3}
REAL = {"device": "cpu", "threads": 1, "model.width": 0.125, "data.batch_size": 32, "train.epochs": 16, "train.max_steps": 160,
        "data.view": "train-32", "data.eval_view": "eval-32", "views.train-32.base": "train-64", "views.train-32.size": 32,
        "views.eval-32.base": "eval-64", "views.eval-32.size": 32}  # fmt: skip
LEARNING = {
    **REAL,
    "train.epochs": 5,
    "train.max_steps": None,
    "validate.every_epochs": 1,
    "train.label_smoothing": 0.0,
}
RANKS = {**EMULATED, "parallel.mode": "ddp", "parallel.devices": 2}
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Injected:
    """What is done to a run; two of them add up."""

    settings: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    faults: Faults | None = None
    patches: tuple[Callable[[], None], ...] = ()
    neighbours: int = 0
    pinned: bool = False
    """The run and its neighbours may use one core, the same one."""
    quota_cores: float | None = None
    link: str | None = None

    def __add__(self, other: "Injected") -> "Injected":
        return Injected(
            {**self.settings, **other.settings}, other.data or self.data, other.faults or self.faults,
            self.patches + other.patches, self.neighbours + other.neighbours, self.pinned or other.pinned,
            other.quota_cores or self.quota_cores, other.link or self.link,
        )  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """`words` are the causes that explain may answer; `jobs` what it can be done to."""

    name: str
    words: tuple[str, ...]
    jobs: tuple[str, ...]
    draw: Callable[[random.Random], Injected]
    says: str = ""
    """A word of its verdict, where that of the cause is too coarse."""
    decides: bool = False
    """It makes the result worthless or kills the run: it leads, whatever time the others take."""
    scene: Injected = Injected()
    """The job that it can happen to, where it is not the plain one: stays where the cause is taken away."""


JOBS: dict[str, tuple[str, dict[str, Any], int]] = {  # dataset, settings, ranks
    "emulated": ("small", EMULATED, 1),
    "real": ("clean", REAL, 1),
    "learning": ("clean", LEARNING, 1),
    "ranks": ("small", RANKS, 2),
    "nodes": ("small", {**EMULATED, "model.width": 0.5, "parallel.mode": "ddp", "parallel.nodes": 2, "cost.count": 2, "train.max_steps": 12}, 1),
}  # fmt: skip

QUICK = {"emulated.base_seconds": 0.005, "emulated.seconds_per_sample": 0.0003, "train.epochs": 12}


def _set(**settings: Any) -> Injected:
    return Injected({name.replace("__", "."): value for name, value in settings.items()})


PHOTOS = Injected({**QUICK, "data.workers": 2}, "big")

CAUSES = (
    Cause("quota", ("host",), ("emulated", "real"), lambda r: Injected(quota_cores=round(r.uniform(0.2, 0.45), 2), settings={"threads": 1}), "quota"),
    Cause("neighbour", ("host",), ("emulated", "real"), lambda r: Injected(neighbours=r.randint(3, 5)), "other processes"),
    Cause("pinned neighbour", ("host",), ("real",), lambda r: Injected(neighbours=r.randint(1, 3), pinned=True), "other processes"),
    Cause("no workers", ("data-workers",), ("emulated",), lambda r: _set(data__workers=0), scene=PHOTOS),
    Cause("few workers", ("data-workers",), ("emulated",), lambda r: _set(data__workers=1), scene=PHOTOS),
    Cause("store latency", ("data-fetch",), ("emulated",), lambda r: Injected({"data.stage": "off"}, faults=Faults(latency_seconds=r.uniform(0.2, 0.5)))),
    Cause("store bandwidth", ("data-fetch",), ("emulated",), lambda r: Injected({"data.stage": "off"}, faults=Faults(bytes_per_second=r.uniform(2e6, 5e6))), scene=Injected({**QUICK, "train.epochs": 3, "data.workers": 2}, "middle")),
    Cause("tail of reads", ("data-fetch",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.slow_tail, r.uniform(0.01, 0.03), r.uniform(0.3, 0.8)),))),
    Cause("slow folder", ("data-fetch",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.slow_folder, r.uniform(0.006, 0.02)),))),
    Cause("slow disk", ("data-fetch",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.slow_disk, r.uniform(0.0015, 0.005)),))),
    Cause("heavy decode", ("data-decode",), ("emulated",), lambda r: Injected(data="big"), scene=Injected({**QUICK, "emulated.seconds_per_sample": 0.0001, "data.workers": 2})),
    Cause("augmentation", ("data-augment",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.slow_augment, r.uniform(0.002, 0.005)),))),
    Cause("tiny batch", ("host",), ("emulated",), lambda r: _set(data__batch_size=r.choice([2, 4])), "batch", scene=_set(data__samples_per_class=100, train__epochs=2)),
    Cause("accumulation", ("host",), ("emulated",), lambda r: _set(train__accumulate=r.choice([8, 16])), "parts"),
    Cause("slow checkpoints", ("checkpoint",), ("emulated", "real"), lambda r: Injected({"checkpoint.every_steps": r.randint(4, 12)}, patches=(partial(scenarios.slow_saves, r.uniform(20e6, 50e6)),)), scene=_set(model__width=0.5, train__max_steps=48)),
    Cause("long validation", ("validation",), ("emulated",), lambda r: _set(validate__every_epochs=1), scene=Injected(data="long-val")),
    Cause("slow start", ("startup",), ("emulated", "real"), lambda r: Injected(patches=(partial(scenarios.slow_start, r.uniform(9, 13)),))),
    Cause("pause of epochs", ("epoch-start",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.slow_epoch_start, r.uniform(0.8, 1.6)),)), scene=_set(train__epochs=5)),
    Cause("slow copy", ("copy",), ("emulated", "real"), lambda r: Injected(patches=(partial(scenarios.slow_copy, r.uniform(0.015, 0.04)),))),
    Cause("slow logger", ("host",), ("emulated", "real"), lambda r: Injected(patches=(partial(scenarios.slow_logger, r.uniform(0.02, 0.05)),)), "records"),
    Cause("late rank", ("straggler",), ("ranks",), lambda r: Injected(patches=(partial(scenarios.late_rank, r.uniform(0.03, 0.08)),))),
    Cause("slow link", ("network",), ("nodes",), lambda r: Injected(link=f"{r.choice([50, 100, 200])}mbit")),
    Cause("threads", ("host",), ("real",), lambda r: _set(threads=r.choice([12, 16, 24])), "threads"),
    Cause("learning rate", ("diverged", "learning"), ("learning",), lambda r: _set(train__lr=r.choice([5.0, 20.0, 1e3]), train__warmup_epochs=0), decides=True),
    Cause("labels", ("labels",), ("learning",), lambda r: Injected(data="mismatched"), decides=True, scene=_set(train__epochs=6)),
    Cause("random labels", ("labels", "learning"), ("learning",), lambda r: Injected(data="random"), decides=True, scene=_set(train__epochs=6)),
    Cause("memory leak", ("memory",), ("emulated",), lambda r: Injected(patches=(partial(scenarios.leak, r.randint(6, 14) * 10**6),)), decides=True, scene=Injected({"monitor.interval_seconds": 0.25})),
)  # fmt: skip
# Two at once that would only be one: what each sets is the other's, too, or one hides the other entirely.
APART = (
    {"quota", "pinned neighbour"},
    {"neighbour", "pinned neighbour"},
    {"no workers", "few workers"},
    {"learning rate", "labels", "random labels"},
)


@dataclass(frozen=True)
class Drawn:
    """What a seed stands for."""

    seed: int
    job: str
    causes: list[tuple[Cause, Injected]]
    variation: Injected = Injected()
    """Of a healthy run: settings that hurt nothing."""

    def without(self, name: str = "") -> Injected:
        """All that is done to the run, but for the cause of this name."""
        scenes = [cause.scene for cause, _ in self.causes]
        return sum((each for cause, each in self.causes if cause.name != name), sum(scenes, self.variation))


def draw(seed: int) -> Drawn:
    """The job of a seed and what is injected: nothing (1 in 8), one thing, or two."""
    chance = random.Random(f"verdicts {seed}")
    job = chance.choices(list(JOBS), weights=[10, 5, 2, 1, 1])[0]
    fitting = [cause for cause in CAUSES if job in cause.jobs]
    count = min(len(fitting), chance.choices([0, 1, 2], weights=[1, 4, 3])[0])
    chosen: list[Cause] = []
    while len(chosen) < count:
        cause = chance.choice([each for each in fitting if each not in chosen])
        if not any({cause.name, other.name} <= group for other in chosen for group in APART) and not _clash(
            chosen, cause
        ):
            chosen.append(cause)
        else:
            fitting = [each for each in fitting if each is not cause]
            count = min(count, len(fitting))
    if not chosen:
        return Drawn(seed, job, [], HARMLESS.get(job, lambda _: Injected())(chance))
    return Drawn(seed, job, [(cause, cause.draw(chance)) for cause in chosen])


def _harmless_emulated(chance: random.Random) -> Injected:
    return _set(
        emulated__base_seconds=round(chance.uniform(0.005, 0.03), 4),
        emulated__seconds_per_sample=round(chance.uniform(0.0006, 0.0015), 5),
        data__batch_size=chance.choice([32, 64, 128]),
        data__workers=chance.choice([1, 2]),
        data__cache=chance.choice(["off", "auto", "memory"]),
        train__epochs=chance.choice([2, 3, 4]),
    )


def _harmless_real(chance: random.Random) -> Injected:
    return _set(
        data__batch_size=chance.choice([32, 48, 64]),
        threads=chance.choice([1, 2]),
        train__max_steps=chance.randint(130, 190),
    )


HARMLESS: dict[str, Callable[[random.Random], Injected]] = {
    "emulated": _harmless_emulated,
    "real": _harmless_real,
    "learning": lambda chance: _set(train__lr=chance.choice([0.03, 0.05, 0.1])),
}


def _clash(chosen: list[Cause], cause: Cause) -> bool:
    """Two that set the same key, dataset, store or way of reading."""
    mine = cause.scene + cause.draw(random.Random(0))
    for other in chosen:
        its = other.scene + other.draw(random.Random(0))
        if mine.settings.keys() & its.settings.keys() or (mine.data and its.data) or (mine.faults and its.faults):
            return True
        if any(each.func is one.func for each in mine.patches for one in its.patches):  # type: ignore[attr-defined]
            return True
    return False


def controller() -> Path | None:
    """Where cgroups with a CPU quota can be made; None where they cannot."""
    first, second = CGROUPS / "cpu", CGROUPS
    for folder, told in ((first, first / "cpu.cfs_quota_us"), (second, second / "cgroup.subtree_control")):
        if told.exists() and os.access(folder, os.W_OK) and (folder is first or "cpu" in told.read_text().split()):
            return folder
    return None


def make_quota(name: str, cores: float) -> Path:
    """A cgroup that may use so many cores."""
    folder = controller()
    assert folder is not None
    made = folder / name
    made.mkdir(exist_ok=True)
    if (made / "cpu.cfs_quota_us").exists():
        (made / "cpu.cfs_period_us").write_text("100000")
        (made / "cpu.cfs_quota_us").write_text(str(round(cores * 100_000)))
    else:
        (made / "cpu.max").write_text(f"{round(cores * 100_000)} 100000")
    return made


def join(folder: str) -> None:
    """This process, and what it starts, from now on."""
    for name in ("tasks", "cgroup.procs"):
        if (Path(folder) / name).exists():
            (Path(folder) / name).write_text(str(os.getpid()))
            return


def pin() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
