"""Damages files of runs, inputs, datasets and caches, one at a time, and runs every command that reads them, in this process.

python tests/fuzz/files_fuzz.py [ROUNDS] [SEED] [--result FILE]

Each round must end in success or in one FlatoutError with exit code 2, within CPU_SECONDS of processor time.
"""

import argparse
import contextlib
import faulthandler
import io
import os
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
from scenes import make_material, scenes

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
    ended: dict[str, Counter[str]] = field(default_factory=dict)  # command -> how it ended -> how often
    files: Counter[str] = field(default_factory=Counter)
    found: dict[str, str] = field(default_factory=dict)  # where it happened -> what, with the first traceback


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


def fuzz(material: Path, rounds: int, seed: int, stop_at: int = 20) -> Result:
    """`material` is read only; commands are given in a copy of it, one file of which is damaged."""
    register()
    result, started = Result(), time.perf_counter()
    stage = scenes(material)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), kept_in(Path(name, "cache")):
        shutil.copytree(material, ".", symlinks=True, dirs_exist_ok=True)
        whole = sorted(os.listdir())
        for scene in stage:
            for command, act in scene.acts.items():
                ended, trouble = attempt(act)
                if ended != "fine" and command != "explain --fix":  # there may be nothing to fix
                    raise SystemExit(f"{command} of whole files ends with {ended}: {trouble}")
                put_back(material, scene.folder.split("/")[0], whole)
        for number in range(rounds):
            chance = random.Random(f"{seed} {number}")
            scene = chance.choices(stage, [each.weight for each in stage])[0]
            file = chance.choice(scene.files(material))
            how = damage(material / file, Path(file), chance)
            command = chance.choice(list(scene.acts))
            before = peak_bytes()
            ended, trouble = attempt(scene.acts[command])
            if ended == "exit 2" or (ended == "exit 1" and scene.may_fail):
                trouble = ""
            if peak_bytes() - before > MOST_GROWTH_BYTES and number > WARM_ROUNDS:
                ended, trouble = (
                    "memory",
                    f"{trouble}\n{command} took {peak_bytes() - before:,} bytes more than any before",
                )
            note(result, f"round {number} seed {seed}: {command} on {file} ({how})", command, file, ended, trouble)
            put_back(material, scene.folder.split("/")[0], whole)
            if result.rounds % 1000 == 0:
                sys.stderr.write(f"{result.rounds:,} of {rounds:,} rounds, {len(result.found)} found\n")
            if len(result.found) >= stop_at or ended_early:
                break
    result.seconds = time.perf_counter() - started
    return result


def damage(source: Path, target: Path, chance: random.Random) -> str:
    """Makes the target a damaged copy, or something else; in a word what."""
    if chance.random() < 0.03:
        return as_something_else(target, chance)
    target.write_bytes(mutated(source.read_bytes(), source.name, chance))
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


def put_back(material: Path, folder: str, whole: list[str]) -> None:
    """The damaged folder, and whatever a command has written beside it."""
    for name in {folder, *os.listdir()} - (set(whole) - {folder}):
        shutil.rmtree(name, ignore_errors=True)
        if os.path.lexists(name):
            os.unlink(name)
    shutil.copytree(
        material / folder, folder, symlinks=True, copy_function=shutil.copy
    )  # new, as of a run that goes on


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


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def as_text(result: Result, command: str, seed: int) -> str:
    kinds = sorted({kind for counts in result.ended.values() for kind in counts})
    rows = [f"| {name} | " + " | ".join(str(counts[kind]) for kind in kinds) + " |" for name, counts in sorted(result.ended.items())]  # fmt: skip
    found = "\n".join(f"- {key}" for key in result.found) or "nothing: no traceback, no hang, no other exit code"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return (
        f"# Damaged files against every command that reads them\n\nCommand: `{command}` (seed {seed}), commit {commit or 'unknown'}\n\n"
        f"{result.rounds} rounds in {result.seconds:.0f} s. Each damages one file of a real run directory (trained, stopped, on two ranks, "
        "swept, recorded, going on), of an input, a dataset or a cache, and runs one command on it, all in one process. It must end "
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
    parser.add_argument("--material", type=Path, help="made by an earlier call; default: make it")
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: ended_early.append(True))  # the result tells how far it came
    with tempfile.TemporaryDirectory() as name:
        material = given.material.resolve() if given.material else make_material(Path(name, "material"))
        result = fuzz(material, given.rounds, given.seed)
    text = as_text(result, f"make fuzz-files ROUNDS={given.rounds}", given.seed)
    sys.stdout.write(text + "\n\n" + "\n\n".join(result.found.values()))
    if given.result:
        before = given.result.read_text(encoding="utf-8") + "\n#" if given.result.exists() else ""  # finds stay listed
        given.result.write_text(before + text, encoding="utf-8")
    sys.exit(bool(result.found))


if __name__ == "__main__":
    main()
