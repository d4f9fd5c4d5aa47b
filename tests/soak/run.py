"""kill -9 at random moments, again and again, of runs with everything on: `make soak KILLS=200`.

Each run trains ema + accumulate + bf16 + mixup from a staged bucket with shared batches, in one process, as two ranks or
under its own launcher; the service is the embedded one, or `flatout serve` with a Redis. Every run must end with the
digest and the ledger of one that nobody touched.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from flatout.runs import RunDirectory
from flatout.sampling import batch_count
from ranks import free_port, places
from servers.s3 import S3Server
from training import (
    SAMPLES,
    Command,
    assert_adds_up,
    make_dataset,
    row_count,
    start,
    summary,
    trained,
    wait_until,
    write_recipe,
)

EPOCHS, LONGEST_SECONDS, IN_TRAINING = 8, 300.0, 0.7
KILLS_OF_A_RUN = {"process": (4, 16), "rank": (4, 12), "launcher": (2, 4)}  # a launcher's ranks import torch anew
STEPS = EPOCHS * batch_count(SAMPLES, 16)
TRAINERS = ("process", "group", "launcher", "rank")
HELPERS = {"embedded": ("coordinator", "producer"), "served": ("server", "producer", "redis")}


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    equal: int = 0
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)


class Services:
    """Redis and `flatout serve`, started again whenever they are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {"redis": free_port(), "server": free_port()}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def ensure(self) -> None:
        """Returns when both listen. A server that was started while Redis was dying ends, and is started again."""
        for name in ("redis", "server"):
            try:
                wait_until(lambda name=name: self._listens_or_starts(name), f"{name} to listen", 180)
            except AssertionError:
                sys.stderr.write((self.folder / f"{name}.txt").read_text(errors="replace")[-3000:])
                raise

    def kill(self, name: str) -> int:
        """And see it dead, so that it is started again; how many were there to be killed."""
        alive = self.running[name].poll() is None
        self.running[name].kill()
        self.running[name].wait()
        return int(alive)

    def _listens_or_starts(self, name: str) -> bool:
        if name not in self.running or self.running[name].poll() is not None:
            with (self.folder / f"{name}.txt").open("ab") as said:
                self.running[name] = subprocess.Popen(
                    self._command(name),
                    stdout=said,
                    stderr=said,
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
                )
        return _listens(self.ports[name])

    def _command(self, name: str) -> list[str]:
        flatout = Path(sys.executable).with_name("flatout")
        redis = f"redis://127.0.0.1:{self.ports['redis']}"
        commands = {
            "redis": ["redis-server", "--port", self.ports["redis"], "--save", "", "--dir", self.folder],
            "server": [flatout, "serve", "--listen", f"127.0.0.1:{self.ports['server']}", "--redis", redis,
                       "--data", "s3://soak", "--bytes", "32MB", "--threads", "1"],
        }  # fmt: skip
        return list(map(str, commands[name]))

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    import socket

    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@dataclass
class Bench:
    """Where everything is; the same for all runs."""

    folder: Path
    data: str
    environment: dict[str, str]
    services: Services

    def recipe(self, shape: str, service: str) -> Path:
        options: dict[str, Any] = {
            "data__path": self.data, "data__stage": "auto", "data__workers": 1, "train__ema": 0.9,
            "train__accumulate": 2, "train__precision": "bf16", "train__epochs": EPOCHS, "checkpoint__every_steps": 2,
            "data__batch_size": 16 if shape == "process" else 8, "views__small__mixup": 0.2,
        }  # fmt: skip
        if shape != "process":
            options |= {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False}
        if service == "embedded":
            options["data__shared"] = "auto"
        elif service == "served":
            token = self.services.folder / "flatout" / "shared.token"
            options |= {"data__shared": f"grpc://127.0.0.1:{self.services.ports['server']}",
                        "data__shared_token": str(token)}  # fmt: skip
        return write_recipe(self.folder / f"{shape}-{service}.yaml", self.folder / "shapes", **options)


class Attempt:
    """The processes of one start of a run."""

    def __init__(self, bench: Bench, shape: str, service: str, run: Path) -> None:
        self.shape = shape
        arguments = ("train", bench.recipe(shape, service), "--run", run)
        environments = places(2) if shape == "rank" else [{}]
        self.trainers: list[Command] = [
            start(*arguments, cwd=bench.folder / "work", environment={**bench.environment, **each})
            for each in environments
        ]

    @property
    def running(self) -> bool:
        return any(each.running for each in self.trainers)

    def tree(self) -> list[psutil.Process]:
        found = []
        for each in self.trainers:
            with suppress(psutil.Error):
                found += [psutil.Process(each.pid), *psutil.Process(each.pid).children(recursive=True)]
        return found

    def end(self) -> list[tuple[int, str]]:
        ended = [each.wait(LONGEST_SECONDS) for each in self.trainers]
        return [(each.code, each.err) for each in ended]


def victims(attempt: Attempt, kind: str, services: Services, chance: random.Random) -> list[int]:
    """The processes to kill; none where there is no such process at this moment."""
    if kind in ("process", "launcher"):
        return [attempt.trainers[0].pid]
    if kind == "group":
        return [each.pid for each in attempt.tree() if _is_trainer(each)]
    if kind == "rank":
        children = [each.pid for each in attempt.tree() if _runs(each, "flatout.commands.one_rank")]
        return chance.sample(children or [each.pid for each in attempt.trainers], 1)
    everybody = [each for each in psutil.process_iter() if _of_this_soak(each, services.folder)]
    module = {"coordinator": "flatout.service.transport.daemon", "producer": "flatout.service.producers.producer"}[kind]
    found = [each.pid for each in everybody if _runs(each, module)]
    return chance.sample(found, 1) if found else []


def _is_trainer(process: psutil.Process) -> bool:
    return not _runs(process, "flatout.service.transport.daemon") and not _runs(
        process, "flatout.service.producers.producer"
    )


def _runs(process: psutil.Process, module: str) -> bool:
    with suppress(psutil.Error):
        return module in process.cmdline()
    return False


def _of_this_soak(process: psutil.Process, folder: Path) -> bool:
    with suppress(psutil.Error, OSError):
        return process.environ().get("XDG_RUNTIME_DIR") in (str(folder), str(folder / "embedded"))
    return False


def kill(pids: list[int]) -> int:
    """How many were there to be killed."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def soak(bench: Bench, kills: int, seed: int, tally: Tally, until: float) -> None:
    chance, references = random.Random(seed), {}
    while sum(tally.kills.values()) < kills and time.monotonic() < until:
        shape, service = ("process", "rank", "launcher")[tally.runs % 3], ("embedded", "served")[tally.runs // 3 % 2]
        known = "process" if shape == "process" else "rank"
        if known not in references:
            references[known] = reference(bench, known)
        run = bench.folder / "work" / "runs" / f"{tally.runs}-{shape}-{service}"
        one_run(bench, shape, service, run, references[known], chance, tally, kills)
        sys.stderr.write(f"{tally.runs} runs, {sum(tally.kills.values())} kills, {len(tally.wrong)} wrong\n")


def reference(bench: Bench, shape: str) -> tuple[Path, float]:
    """A run that nobody touches, with a loader of its own; and how long it takes."""
    run = bench.folder / "work" / "runs" / f"reference-{shape}"
    attempt = Attempt(bench, shape, "own", run)
    ended = attempt.end()
    assert {code for code, _ in ended} == {0}, ended
    return run, summary(run)["time"]["wall_seconds"]


def one_run(
    bench: Bench, shape: str, service: str, run: Path, wanted: tuple[Path, float], chance: random.Random, tally: Tally,
    most: int,
) -> None:  # fmt: skip
    kinds = [*HELPERS[service], *{"process": ["process"], "rank": ["rank", "group"], "launcher": TRAINERS[1:]}[shape]]
    left = chance.randint(*KILLS_OF_A_RUN[shape])
    bench.services.ensure()
    attempt = Attempt(bench, shape, service, run)
    tally.attempts += 1
    while True:
        kind = chance.choice(kinds)
        await_moment(attempt, run, wanted[1], chance if left else None)
        if attempt.running and sum(tally.kills.values()) < most:
            if kind in ("redis", "server"):
                killed = bench.services.kill(kind)
            else:
                killed = kill(victims(attempt, kind, bench.services, chance))
            if killed:
                tally.kills[kind] += 1
                left -= 1
                sys.stderr.write(f"kill {sum(tally.kills.values())}: {kind} of {run.name}\n")
            bench.services.ensure()
            if kind not in TRAINERS:
                continue
        elif attempt.running:
            left = 0
            continue
        ended = attempt.end()
        if {code for code, _ in ended} == {0}:
            break
        if not all(code in (0, 1, -signal.SIGKILL) for code, _ in ended) or "Traceback" in ended[0][1]:
            tally.wrong.append(f"{run.name}: ended with {ended}")
        wait_until(lambda: not RunDirectory(run).in_use(), f"the lock of {run}", 60)
        bench.services.ensure()
        attempt = Attempt(bench, shape, service, run)
        tally.attempts += 1
    tally.runs += 1
    problem = compare(run, wanted[0])
    tally.equal += problem is None
    if problem is not None:
        tally.wrong.append(f"{run.name}: {problem}")


def await_moment(attempt: Attempt, run: Path, seconds: float, chance: random.Random | None) -> None:
    """Until a random step from now on, or for a random time, which is a moment of the start more often; None: the end."""
    if chance is None:
        until_rows, until_time = STEPS * 100, float("inf")
    elif chance.random() < IN_TRAINING:
        until_rows, until_time = row_count(run) + chance.randint(1, STEPS // 4), float("inf")
    else:
        until_rows, until_time = STEPS * 100, time.monotonic() + chance.uniform(0, seconds)
    while attempt.running and row_count(run) < until_rows and time.monotonic() < until_time:
        time.sleep(0.01)


def compare(run: Path, wanted: Path) -> str | None:
    found, expected = summary(run), summary(wanted)
    if found["status"] != "completed":
        return f"status {found['status']}: {found['cause']}"
    if trained(run) != trained(wanted):
        return "the ledger of its steps differs"
    if found["state_digest"] != expected["state_digest"]:
        return "the digest of weights, optimizer and random state differs"
    try:
        assert_adds_up(run)
    except AssertionError as error:
        return f"its seconds do not add up: {error}"
    return None


def report(tally: Tally, asked: int, seconds: float, arguments: list[str]) -> str:
    lines = [
        "# Soak: kill -9 at random moments, everything on", "",
        f"`tests/soak/run.py {' '.join(arguments)}` ({seconds / 60:.0f} minutes, 2 shared cores, no GPU), "
        "runs of ema + accumulate 2 + bf16 + mixup + staged S3 bucket + shared batches, one process or 2 ranks.", "",
        f"- kills asked for {asked}, done {sum(tally.kills.values())}, in {tally.runs} runs with {tally.attempts} starts",
        f"- runs whose digest, ledger and clock are those of an untouched run: **{tally.equal} of {tally.runs}**", "",
        "| killed | times |", "|---|---:|", *(f"| {kind} | {count} |" for kind, count in sorted(tally.kills.items())), "",
        *(f"- WRONG: {each}" for each in tally.wrong),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so long")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tally, began = Tally(), time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flatout-soak-")))
        (folder / "work").mkdir()
        make_dataset(folder / "shapes")
        server = stack.enter_context(S3Server(folder / "s3"))
        (folder / "s3").mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", folder / "shapes", folder / "s3" / "soak"], check=True)
        services = Services(folder)
        stack.callback(services.close)
        environment = {
            "AWS_ENDPOINT_URL": server.endpoint, "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_REGION": "us-east-1",
            "XDG_CACHE_HOME": str(folder / "cache"), "XDG_RUNTIME_DIR": str(folder / "embedded"),
        }  # fmt: skip
        (folder / "embedded").mkdir(mode=0o700)  # `flatout serve` has another place: jobs would find it and start none
        os.environ.update(environment)  # also for producers of the service
        try:
            soak(
                Bench(folder, "s3://soak", environment, services),
                options.kills,
                options.seed,
                tally,
                began + 60 * options.minutes,
            )
        finally:
            text = report(tally, options.kills, time.monotonic() - began, sys.argv[1:])
            sys.stdout.write(text)
            if options.out is not None:
                options.out.write_text(text, encoding="utf-8")
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
