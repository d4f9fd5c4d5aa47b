"""Several jobs on one machine, each with a loader of its own or with shared batches: samples per second in all.

An emulated accelerator (a wait of `--step` seconds for each batch, 0 for one that is faster than any loader) takes what
the loader gives, so that the CPU belongs to the data path. Modes take turns, round after round; a turn starts when
every job has had its first batch. `ideal` is one job with a thread on every core: 4 jobs that share can at best get
four times that.

    python benchmarks/shared_batches.py --data tiny=../shared/data/tiny-imagenet-40.tar:train-64 [--cache off] [--jobs 1 2 4]
    python benchmarks/shared_batches.py --data ... --speeds 0.1 0.05 0.025      # jobs of unequal speed
    python benchmarks/shared_batches.py --data ... --slices 60                  # short turns, of jobs that stay

A machine whose speed changes from minute to minute makes figures of whole turns vary by a sixth. With `--slices` the
jobs of all modes are there all the time, and one mode at a time is let run, for 0.8 s, round after round; the others
are stopped (SIGSTOP, with the service they use), so that nothing is prepared meanwhile.
"""

import argparse
import json
import math
import mmap
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def job(arguments):
    """One job: says `ready` when warm, starts on a line of input, prints its figures, ends on another line: nothing that
    one job does before or after its turn (imports, the end of torch) falls into the turn of another."""
    from flatout.commands.serve import look
    from flatout.config.loading import load_config
    from flatout.data.loading.loader import choose_workers, open_loader
    from flatout.data.loading.prepare import BatchPlan
    from flatout.data.pixels.views import resolve_view
    from flatout.data.source.dataset import open_dataset
    from flatout.machine.budgets import usable_cores
    from flatout.service.client.opening import open_shared_loader
    from flatout.tasks.classification.emulated_model import Wait

    path, view = arguments.path.rsplit(":", 1)
    config = load_config(
        {"data": {"path": path, "cache": arguments.cache, "shared": "auto", "shared_bytes": arguments.bytes}}
    ).config.data
    recipe = BatchPlan(open_dataset(config).train, resolve_view(view), 0, arguments.batch)
    workers = usable_cores() if arguments.mode == "ideal" else choose_workers("auto", "emulated", recipe).value
    pool = None
    if arguments.mode == "shared":
        loader, pool = open_shared_loader(recipe, config, workers, "emulated")
    else:
        loader = open_loader(recipe, config, workers, device_kind="emulated")

    def batches():
        epoch = 0
        while True:
            yield from loader.epoch(epoch)
            epoch += 1

    source, wait = batches(), Wait()
    for _ in range(arguments.warm):
        next(source)
    if arguments.step:
        time.sleep(1.0)  # a job that does not take all there is: as much is ready when a turn begins as when it ends
    if pool is not None:
        look()
    print("ready", flush=True)
    sys.stdin.readline()
    before = None if pool is None else look()
    shown = Counter(arguments.counter) if arguments.counter else None
    samples, steps, waited, began = 0, 0, 0.0, time.perf_counter()
    while shown.goes_on() if shown else time.perf_counter() - began < arguments.seconds:
        asked = time.perf_counter()
        batch = next(source)
        start = time.perf_counter()
        waited += start - asked
        wait.until(start, arguments.step)
        samples, steps = samples + batch.labels.shape[0], steps + 1
        del batch
        if shown:
            shown.show(samples)
    seconds = time.perf_counter() - began
    figures = {
        "samples_per_second": samples / seconds,
        "step_seconds": seconds / steps,
        "data_wait_seconds": waited / steps,
    }
    if pool is not None:
        figures["use"], figures["before"], figures["service"] = pool.summary(), before, look()
    print(json.dumps(figures), flush=True)
    sys.stdin.readline()
    loader.close()


class Counter:
    """Samples so far and the wish to go on, in a file that a job and whoever started it have mapped."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self._words = mmap.mmap(file.fileno(), 16)

    def show(self, samples):
        self._words[:8] = struct.pack("<q", samples)

    def shown(self):
        return struct.unpack("<q", self._words[:8])[0]

    def end(self):
        self._words[8:] = b"finished"

    def goes_on(self):
        return self._words[8:] == bytes(8)


def start(mode, steps, path, options, folder, counters=()):
    """Jobs, when all of them are warm."""
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": folder,
        "XDG_CACHE_HOME": f"{folder}/cache",
        "OMP_NUM_THREADS": "1",
    }
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, "job", "--path", path, "--mode", mode, "--step", str(step), "--seconds", str(options.seconds),
             "--batch", str(options.batch), "--cache", options.cache, "--bytes", options.bytes, "--warm", str(options.warm),
             *(("--counter", counters[number]) if counters else ())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number, step in enumerate(steps)
    ]  # fmt: skip
    for each in jobs:
        assert each.stdout.readline() == "ready\n"
    return jobs


def go(jobs):
    for each in jobs:
        each.stdin.write("go\n")
        each.stdin.flush()


def turn(mode, steps, path, options):
    """All jobs of one turn, started together."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = start(mode, steps, path, options, folder)
        go(jobs)
        figures = [json.loads(each.stdout.readline()) for each in jobs]
        for each in jobs:
            each.stdin.close()
            each.wait(60)
        return figures


class Group:
    """The jobs of one mode, and the service they started: stopped, but for the slices of time they are given."""

    def __init__(self, mode, steps, path, options):
        self.name = f"{mode} {len(steps)}"
        self._folder = tempfile.mkdtemp()
        files = [f"{self._folder}/counter-{number}" for number in range(len(steps))]
        for each in files:
            Path(each).write_bytes(bytes(16))
        self._jobs = start(mode, steps, path, options, self._folder, files)
        self._counters = [Counter(each) for each in files]
        self._pids = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_mine(pid)]
        self.signal(signal.SIGSTOP)
        go(self._jobs)

    def _is_mine(self, pid):
        try:
            return f"XDG_RUNTIME_DIR={self._folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def signal(self, number):
        for pid in self._pids:
            os.kill(pid, number)

    def slice(self, seconds):
        """Samples per second."""
        before, began = self.samples(), time.perf_counter()
        self.signal(signal.SIGCONT)
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        return (self.samples() - before) / (time.perf_counter() - began)

    def samples(self):
        return sum(each.shown() for each in self._counters)

    def end(self):
        for each in self._counters:
            each.end()
        self.signal(signal.SIGCONT)
        for each in self._jobs:
            each.communicate("\n")
        shutil.rmtree(self._folder)


def take_slices(plan, path, options):
    """Every mode's samples per second in each slice of time."""
    groups = []
    try:
        for mode, steps in plan:
            groups.append(Group(mode, steps, path, options))
        for each in groups:
            each.slice(2.0)
        rates = {each.name: [] for each in groups}
        for number in range(options.slices):
            for each in groups:
                rates[each.name].append(each.slice(options.slice_seconds))
            print({name: round(values[number]) for name, values in rates.items()}, flush=True)
    finally:
        for each in groups:
            each.end()
    return rates


def ratio(rates, of, to):
    """Of all slices together; and the standard error, from neighbouring slices."""
    logs = [math.log(one / other) for one, other in zip(rates[of], rates[to], strict=True) if one and other]
    return {"ratio": sum(rates[of]) / sum(rates[to]), "error": statistics.stdev(logs) / math.sqrt(len(logs))}


def predict(steps, measured, batch, seconds):
    """The simulator's word on a turn, from the seconds that its producers took for a batch in it."""
    from flatout.service.coordinator.policy import Policy
    from flatout.simulation.simulator import SimulatedJob, SimulatedWorld, Simulation

    seen, before = measured[0]["service"], measured[0]["before"]
    (stream,) = seen["streams"].values()
    hands = sum(each["slots"] - 1 for each in seen["producers"].values() if each["slots"])
    count = 400
    counts = {name: value - before["counts"][name] for name, value in seen["counts"].items()}
    make_seconds = counts["made_seconds"] / max(1, counts["made"])
    world = SimulatedWorld(
        tuple(SimulatedJob(step, round(seconds / step) if step else count) for step in steps), stream["batches_per_epoch"], stream["batch_bytes"], hands,
        make_seconds,
    )  # fmt: skip
    outcome = Simulation(world, Policy(seen["capacity_bytes"])).run()
    return {
        "samples_per_second": sum(batch * job.batches / took for job, took in zip(world.jobs, outcome.job_seconds, strict=True)), "hit_rate": outcome.hit_rate,
        "measured_samples_per_second": sum(each["samples_per_second"] for each in measured),
        "measured_hit_rate": 1 - counts["made"] / (counts["hits"] + counts["waited"]),
    }  # fmt: skip


def median(rows, of):
    values = [of(row) for row in rows]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", action="append", required=True, help="NAME=PATH:VIEW")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument(
        "--speeds", type=float, nargs="*", help="seconds of a step of each job: unequal jobs, alone and together"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="*", default=["plain", "shared"])
    parser.add_argument("--step", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--cache", default="auto")
    parser.add_argument("--bytes", default="4 GB")
    parser.add_argument("--slices", type=int, help="short turns of jobs that stay, instead of whole turns")
    parser.add_argument("--slice-seconds", type=float, default=0.8, help="all modes' together below five seconds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = {
        "command": " ".join(sys.argv),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
        "datasets": {},
    }
    for named in options.data:
        name, path = named.split("=", 1)
        plan = [("ideal", [options.step])] + [
            (mode, [options.step] * count) for count in options.jobs for mode in options.modes
        ]
        if options.speeds:
            plan = [("shared", options.speeds)] + [("plain", [speed]) for speed in options.speeds]
        if options.slices:
            rates = take_slices(plan, path, options)
            pairs = {
                (f"shared {count}", to) for count in options.jobs for to in ("ideal 1", f"plain {count}") if to in rates
            }
            results["datasets"][name] = {
                "path": path, "cache": options.cache, "batch": options.batch, "rates": rates,
                "ratios": {f"{of} / {to}": ratio(rates, of, to) for of, to in sorted(pairs)},
            }  # fmt: skip
            print(name, json.dumps(results["datasets"][name]["ratios"], indent=1))
            continue
        turns = {}
        for number in range(options.rounds):
            for at in range(len(plan)):
                mode, steps = plan[(at + number) % len(plan)]
                figures = turn(mode, steps, path, options)
                turns.setdefault((mode, *steps), []).append(figures)
                if mode == "shared":
                    results.setdefault("predictions", []).append(
                        {"data": name, "steps": steps, **predict(steps, figures, options.batch, options.seconds)}
                    )
                    print(" predicted", results["predictions"][-1], flush=True)
                print(name, mode, steps, [round(each["samples_per_second"]) for each in figures], flush=True)
        rows = []
        for (mode, *steps), measured in turns.items():
            total = median(measured, lambda figures: sum(each["samples_per_second"] for each in figures))
            each = [
                statistics.median(figures[at]["samples_per_second"] for figures in measured) for at in range(len(steps))
            ]
            rows.append({"mode": mode, "jobs": len(steps), "steps": steps, "samples_per_second": total, "each": each,
                         "use": [figures.get("use") for figures in measured[-1]]})  # fmt: skip
        results["datasets"][name] = {"path": path, "cache": options.cache, "batch": options.batch, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        parser = argparse.ArgumentParser()
        for flag, kind in (
            ("path", str),
            ("mode", str),
            ("step", float),
            ("seconds", float),
            ("batch", int),
            ("cache", str),
            ("bytes", str),
            ("warm", int),
            ("counter", str),
        ):
            parser.add_argument(f"--{flag}", type=kind)
        job(parser.parse_args(sys.argv[2:]))
    else:
        main()
