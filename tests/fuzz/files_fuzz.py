"""Damages files of runs, inputs, datasets and caches, one at a time, and runs every command that reads them, in the
fuzzer's own processes.

python tests/fuzz/files_fuzz.py [ROUNDS] [SEED] [--jobs N] [--result FILE]

Each round must end in success or in one FlatoutError with exit code 2, within CPU_SECONDS of processor time.
"""

import argparse
import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from damage import as_something_else, mutated
from scenes import Scene, make_material, scenes
from working_copy import WorkingCopy

from flatout.cli import register
from flatout.cli.main import about_a_file
from flatout.errors import CheckpointCorrupt, FlatoutError

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 20  # of one command, after which it hangs: they take a tenth of a second
WALL_SECONDS = 120
MOST_GROWTH_BYTES = 2**29  # of the peak of resident memory, in one round
WARM_ROUNDS = 300  # until then memory grows for what is imported

ended_early: list[bool] = []


class Hangs(BaseException):
    """Not an Exception: nobody may catch it on the way."""


@dataclass
class Result:
    rounds: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    ended: dict[str, Counter[str]] = field(default_factory=dict)  # command -> how it ended -> how often
    files: Counter[str] = field(default_factory=Counter)
    found: dict[str, str] = field(default_factory=dict)  # where it happened -> what, with the first traceback

    def add(self, other: "Result") -> None:
        self.rounds += other.rounds
        self.seconds = max(self.seconds, other.seconds)
        self.cpu_seconds += other.cpu_seconds
        for command, counts in other.ended.items():
            self.ended.setdefault(command, Counter()).update(counts)
        self.files.update(other.files)
        self.found = {**other.found, **self.found}


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    """Of processor time: a busy machine is no hang."""

    def stop(*_: object) -> None:
        raise Hangs

    faulthandler.dump_traceback_later(2 * WALL_SECONDS, exit=True, file=sys.__stderr__)  # not even a signal ends it
    before = [signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)  # a wait in the kernel takes no processor time
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def attempt(act: Callable[[], object]) -> tuple[str, str]:
    """How it ended, and for what must not be, where and how."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), deadline():
            act()
    except CheckpointCorrupt:
        return "damaged", ""  # noticed by its digest, and said
    except FlatoutError as error:
        said = f"{type(error).__name__} exit {error.exit_code}: {str(error)[:300]}"
        if error.exit_code > 2 or len(str(error)) > 2000:
            return "wrong exit", said
        return f"exit {error.exit_code}", said
    except OSError as error:
        said = about_a_file(error)
        return ("traceback", traceback.format_exc(limit=-4)) if said is None else ("exit 2", said)
    except Hangs:
        return "hang", traceback.format_exc(limit=-4)
    except SystemExit as error:
        return ("fine", "") if error.code in (0, 1, None) else ("wrong exit", f"exit {error.code}")
    except BaseException as error:
        if type(error).__name__ == "Exit":  # typer's
            return "fine", ""
        return "traceback", traceback.format_exc(limit=-4)
    return "fine", ""


def together(material: Path, rounds: int, seed: int, jobs: int, folder: Path) -> Result:
    """In so many processes, each with a seed of its own; one that dies is a find, too. `folder` is for their results."""
    start, whole, parts = multiprocessing.get_context("spawn"), Result(), []
    for k in range(jobs):
        own = rounds * (k + 1) // jobs - rounds * k // jobs
        given = (material, own, seed if jobs == 1 else 1000 * seed + k, folder / f"part{k}")
        parts.append((start.Process(target=fuzz_part, args=given), given[-1]))
    for process, _ in parts:
        process.start()
    signal.signal(signal.SIGTERM, lambda *_: [process.terminate() for process, _ in parts])  # each ends with its result
    for process, kept in parts:
        process.join()
        if process.exitcode == 0:
            whole.add(pickle.loads(kept.read_bytes()))
        else:
            whole.found[f"exit code {process.exitcode} in {_latest(kept).read_text()}"] = "see above"
    return whole


def fuzz_part(material: Path, rounds: int, seed: int, kept: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: ended_early.append(True))
    faulthandler.enable()
    _latest(kept).write_text("the start")
    kept.write_bytes(pickle.dumps(fuzz(material, rounds, seed, _latest(kept))))


def _latest(kept: Path) -> Path:
    """Where a process names the round that goes on."""
    return kept.with_suffix(".round")


def fuzz(material: Path, rounds: int, seed: int, latest: Path | None = None, stop_at: int = 20) -> Result:
    """`material` is only read; commands are given in a copy of it, one file of which is damaged."""
    register()
    result, started = Result(), time.perf_counter()
    stage = scenes(material)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), kept_in(Path(name, "cache")):
        shutil.copytree(material, ".", symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("cache"))
        read_whole(stage)
        copy, cpu_before = WorkingCopy(), cpu_seconds()  # with what these commands keep in the cache
        files, weights = [scene.files(Path()) for scene in stage], [scene.weight for scene in stage]
        while result.rounds < rounds and len(result.found) < stop_at and not ended_early:
            chance = random.Random(f"{seed} {result.rounds}")
            ((scene, names),) = chance.choices(list(zip(stage, files, strict=True)), weights)
            if scene.goes_on:
                copy.leave_anew(scene.folder)
            a_round(f"round {result.rounds} seed {seed}", scene, names, chance, result, latest)
            copy.put_back()
            if result.rounds % 1000 == 0:
                copy.check()
                sys.stderr.write(f"{result.rounds:,} of {rounds:,} rounds, {len(result.found)} found\n")
        copy.check()
        result.cpu_seconds = cpu_seconds() - cpu_before
    result.seconds = time.perf_counter() - started
    return result


def read_whole(stage: list[Scene]) -> None:
    """Every command on files as they should be: what is found later is of the damage."""
    copy = WorkingCopy(but="cache")
    for scene in stage:
        for command, act in scene.acts.items():
            ended, trouble = attempt(act)
            if ended != "fine" and command != "explain --fix":  # there may be nothing to fix
                raise SystemExit(f"{command} of whole files ends with {ended}: {trouble}")
            copy.put_back()


def a_round(
    name: str, scene: Scene, files: list[str], chance: random.Random, result: Result, latest: Path | None
) -> None:
    file = chance.choice(files)
    how = damage(Path(file), chance)
    command = chance.choice(list(scene.acts))
    name = f"{name}: {command} on {file} ({how})"
    if latest is not None:
        latest.write_text(name)
    before = peak_bytes()
    ended, trouble = attempt(scene.acts[command])
    if ended == "exit 2" or (ended == "exit 1" and scene.may_fail):
        trouble = ""
    grown = peak_bytes() - before
    if grown > MOST_GROWTH_BYTES and result.rounds > WARM_ROUNDS:
        ended, trouble = "memory", f"{trouble}\n{command} took {grown:,} bytes more than any before"
    note(result, name, command, file, ended, trouble)


def damage(target: Path, chance: random.Random) -> str:
    """Changes the file, or puts something else in its place; in a word which."""
    if chance.random() < 0.03:
        return as_something_else(target, chance)
    target.write_bytes(mutated(target.read_bytes(), target.name, chance))
    return "changed"


def note(result: Result, round_name: str, command: str, file: str, ended: str, trouble: str) -> None:
    result.rounds += 1
    result.files["/".join(file.split("/")[: 2 if file.startswith(("data/", "inputs/", "tiny/")) else 1])] += 1
    result.ended.setdefault(command, Counter())[ended] += 1
    if trouble:
        where = next((line for line in reversed(trouble.splitlines()) if line.startswith("  File")), trouble)
        said = trouble.splitlines()[-1][:150] if where != trouble else ""
        key = f"{ended} {where.strip().replace(str(ROOT), '').partition(':')[0]} {said}"
        if key not in result.found:
            sys.stderr.write(f"{round_name}\n{trouble}\n")
        result.found.setdefault(key, f"{round_name}\n{trouble}")


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def cpu_seconds() -> float:
    """Of this process and those it has waited for."""
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def as_text(result: Result, command: str, seed: int, jobs: int) -> str:
    kinds = sorted({kind for counts in result.ended.values() for kind in counts})
    rows = [f"| {name} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |" for name, counts in sorted(result.ended.items())]  # fmt: skip
    found = "\n".join(f"- {key}" for key in result.found) or "nothing: no traceback, no hang, no other exit code"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"# Damaged files against every command that reads them\n\nCommand: `{command}` (seed {seed}), commit {commit or 'unknown'}\n\n"
        f"{result.rounds} rounds in {result.seconds:.0f} s in {jobs} processes, {result.cpu_seconds / max(1, result.rounds):.3f} s of "
        f"processor time each. Each damages one file of a real run directory (trained, stopped, on two ranks, "
        "swept, recorded, going on), of an input, a dataset or a cache, and runs one command on it, in the fuzzer's process. It must end "
        "well or with one line and exit code 2 (1 where too many samples of a dataset cannot be used), within "
        f"{CPU_SECONDS} s of processor time and {MOST_GROWTH_BYTES >> 20} MB above the peak of the rounds before.\n\n"
        f"| command | {' | '.join(kinds)} |\n|---|{'---:|' * len(kinds)}\n" + "\n".join(rows) + "\n\n"
        f"Files damaged: {', '.join(f'{name} {count}' for name, count in sorted(result.files.items()))}.\n\n"
        f"Found:\n{found}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", nargs="?", type=int, default=2000)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--material", type=Path, help="made by an earlier call; default: make it")
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes: their models are tiny
    with tempfile.TemporaryDirectory() as name:
        material = given.material.resolve() if given.material else make_material(Path(name, "material"))
        result = together(material, given.rounds, given.seed, given.jobs, Path(name))
    text = as_text(result, f"make fuzz-files ROUNDS={given.rounds}", given.seed, given.jobs)
    sys.stdout.write(text + "\n\n" + "\n\n".join(result.found.values()))
    if given.result:
        before = given.result.read_text(encoding="utf-8") + "\n#" if given.result.exists() else ""  # finds stay listed
        given.result.write_text(before + text, encoding="utf-8")
    sys.exit(bool(result.found))


if __name__ == "__main__":
    main()
