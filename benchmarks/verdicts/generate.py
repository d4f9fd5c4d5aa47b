"""Scenarios that nobody listed: one or two causes drawn with their strengths, and the verdict held against the truth.

    python benchmarks/verdicts/generate.py --seeds 0:100 [--dir DIR] [--only WORD] [--no-fixes] [--out FOLDER]
                                           [--most-minutes N] [--reread]

The truth is what was injected, and the counterfactual: the same run without it. Of two causes the one that, taken away,
makes the run shorter is the strongest. For every finding whose fix is a change of the recipe, the run with that change
is made, and what was promised is held against what it took; where there are several, so is the run with all of them,
which is what `explain --fix` writes. A seed takes one to six runs of 5 to 15 s each on an idle machine, half a minute on
average. Without its only cause a run is the healthy run of its job, which is made once a call.

Rows are kept as they come (DIR/generated.json): a call that is interrupted, or ends with --most-minutes, goes on where it
was, and several calls add up. --reread makes no runs: it judges those that DIR has by today's rules. Writes
<date>-verdicts-generated.json and .md to the folder of --out.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent), str(ROOT / "benchmarks")]

from causes import JOBS, Drawn, Injected, controller, draw, join, make_quota, pin  # noqa: E402
from judging import BUSY_CORES, fix_row, judged, report  # noqa: E402
from run_scenarios import BASE, FORKS, compute, here, make_datasets, over_link  # noqa: E402
from scenarios import Scenario  # noqa: E402

from dated_results import current_commit  # noqa: E402
from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402


def patched(patches: Iterable[Any]) -> None:
    for each in patches:
        each()


def compute_pinned() -> None:
    pin()
    compute()


class Player:
    """Plays runs of one folder, one at a time."""

    def __init__(self, folder: Path, proxy: FaultProxy, environment: dict[str, str]) -> None:
        self._folder, self._proxy, self._environment = folder, proxy, environment
        self._healthy_seconds: dict[str, float] = {}

    def play(self, job: str, injected: Injected, name: str) -> dict[str, Any]:
        """One run; its seconds, and what explain says of it."""
        data, settings, ranks = JOBS[job]
        run = self._folder / "generated" / name
        for left in (run, Path(f"{run}-cache")):
            shutil.rmtree(left, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        self._train(
            Scenario(name, "", settings={**settings, **injected.settings}, ranks=ranks, fails=True),
            injected,
            injected.data or data,
            run,
        )
        return told(run)

    def healthy_seconds(self, job: str, scene: Injected) -> float:
        """Of a job to which nothing happens; made once."""
        known, key = self._healthy_seconds, f"{job} {scene}"
        if key not in known:
            known[key] = self.play(job, scene, f"healthy-{len(known)}")["seconds"]
        return known[key]

    def _train(self, scenario: Scenario, injected: Injected, data: str, run: Path) -> None:
        patches, path, quota = list(injected.patches), str(self._folder / "data" / data), None
        self._proxy.clear()
        if injected.faults is not None:
            path = f"s3://data/{data}"
            self._proxy.set(injected.faults)
        if injected.quota_cores is not None:
            quota = make_quota(f"flatout-verdicts-{os.getpid()}", injected.quota_cores)
            patches.insert(0, partial(join, str(quota)))
        if injected.pinned:
            patches.insert(0, pin)
        target = compute_pinned if injected.pinned else compute
        neighbours = [FORKS.Process(target=target, daemon=True) for _ in range(injected.neighbours)]
        for each in neighbours:
            each.start()
        try:
            if "parallel.nodes" in scenario.settings:
                over_link({**BASE, "data.path": path, **scenario.settings}, injected.link or "10gbit", run)
            else:
                here(replace(scenario, inject=partial(patched, patches)), path, run, self._environment)
        finally:
            for each in neighbours:
                each.kill()
                each.join()
            self._proxy.set(Faults())
            if quota is not None:
                quota.rmdir()
            shutil.rmtree(f"{run}-cache", ignore_errors=True)


def told(run: Path) -> dict[str, Any]:
    """What explain says of a run; `fix` are the changes that `explain --fix` would write."""
    from flatout.commands.explain import explain, fixing_changes
    from flatout.runs import read_run

    read = read_run(run)
    explained = explain(read)
    return {
        "status": read.status, "seconds": read.summary["time"]["wall_seconds"], "cause": explained.cause, "healthy": explained.healthy,
        "verdict": explained.verdict, "findings": [finding.to_dict() for finding in explained.findings],
        "fix": fixing_changes(read, explained),
    }  # fmt: skip


def scenario_row(player: Player, seed: int, fixes: bool) -> dict[str, Any]:
    """Everything that is known of one seed."""
    drawn, name = draw(seed), f"seed-{seed}"
    ambient = psutil.cpu_percent(1.0) / 100 * (os.cpu_count() or 1)  # before anything is injected
    row = {"seed": seed, "job": drawn.job, "causes": [cause.name for cause, _ in drawn.causes],
           "strengths": [_strength(each) for _, each in drawn.causes], "variation": _strength(drawn.variation),
           "ambient_cores": ambient, "busy": ambient > BUSY_CORES, "load": os.getloadavg()[0], "commit": current_commit()}  # fmt: skip
    row |= player.play(drawn.job, drawn.without(), name)
    if row["status"] == "failed" and not any(cause.decides for cause, _ in drawn.causes):
        raise RuntimeError(f"seed {seed} was to be slow, and failed: {row['verdict']}")
    row["without"] = {cause.name: _without(player, drawn, cause.name) for cause, _ in drawn.causes if not cause.decides}
    row |= judged(row, [cause for cause, _ in drawn.causes])
    row["fixes"] = list(_fixed_runs(player, drawn, row)) if fixes else []
    return row


def _without(player: Player, drawn: Drawn, name: str) -> float:
    """Seconds of the run without this cause."""
    rest = drawn.without(name)
    if len(drawn.causes) == 1:
        return player.healthy_seconds(drawn.job, rest)
    return float(player.play(drawn.job, rest, f"seed-{drawn.seed}-without")["seconds"])


def _strength(injected: Injected) -> str:
    """In words; a patch by its function and arguments."""
    told = {name: value for name, value in vars(injected).items() if value and name != "patches"}
    for each in injected.patches:
        told[each.func.__name__] = [round(value, 4) for value in each.args]  # type: ignore[attr-defined]
    return ", ".join(
        f"{name}={value if not isinstance(value, Faults) else vars(value)}" for name, value in told.items()
    )


def _fixed_runs(player: Player, drawn: Drawn, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """One after the other, then all together. What changes nothing but the result's worth promises no time."""
    tried: list[dict[str, Any]] = []
    promises = [(each["id"], each["fix"]["changes"], each["gain"]) for each in row["findings"] if each["gain"]]
    for name, changes, gain in [*promises, ("all", row["fix"], None)]:
        if not changes or changes in tried or (gain is None and not tried):
            continue
        tried.append(changes)
        fixed = player.play(drawn.job, drawn.without() + Injected(settings=changes), f"seed-{drawn.seed}-fixed")
        yield fix_row(name, changes, gain, row["seconds"], fixed["seconds"])


def reread(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The same runs by today's rules. The fixes are those that were run: what is promised of them is today's."""
    run, causes = folder / "generated" / f"seed-{row['seed']}", [cause for cause, _ in draw(row["seed"]).causes]
    if not run.exists():
        return row
    row = {**row, **told(run)}
    row |= judged(row, causes)
    gains = {str(each["fix"]["changes"]): each["gain"] for each in row["findings"]}
    kept = []
    for each in row["fixes"]:
        gain = gains.get(str(each["changes"])) if each["promised"] else None
        if each["promised"] is None or gain is not None:
            kept.append(
                fix_row(each["finding"], each["changes"], gain, row["seconds"], row["seconds"] / each["achieved"])
            )
    return {**row, "fixes": kept}


def play_seeds(
    player: Player, seeds: list[int], rows: dict[int, dict[str, Any]], kept: Path, given: argparse.Namespace
) -> None:
    """Those that are not kept yet, until the time is over."""
    began, missing = time.monotonic(), [seed for seed in seeds if seed not in rows]
    for number, seed in enumerate(missing, 1):
        minutes, started = (time.monotonic() - began) / 60, time.monotonic()
        if minutes >= given.most_minutes:
            print(f"{given.most_minutes:g} minutes are over; the same command goes on with seed {seed}", flush=True)
            return
        row = rows[seed] = scenario_row(player, seed, not given.no_fixes)
        kept.write_text(json.dumps(list(rows.values()), indent=1))
        took, minutes = time.monotonic() - started, (time.monotonic() - began) / 60
        left = (len(missing) - number) * minutes / number
        fixed = ", ".join(f"{each['finding']} {each['achieved']:.2f}" for each in row["fixes"])
        print(f"{'right' if row['right'] else 'WRONG'} seed {seed} ({number} of {len(missing)}, {took:.0f} s, about {left:.0f} min left, "
              f"{row['ambient_cores']:.1f} cores busy before) {row['causes']} truth {row['truth']}: {row['cause']}; fixes {fixed or 'none'}"
              f"\n       {row['verdict']}", flush=True)  # fmt: skip


def listed(seeds: str) -> list[int]:
    """Of `A:B` or `A,B,C`."""
    first, colon, last = seeds.partition(":")
    return list(range(int(first), int(last))) if colon else [int(each) for each in seeds.split(",")]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default="0:100", metavar="A:B", help="from A up to, but without, B; or A,B,C")
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-verdicts"))
    arguments.add_argument("--only", default="", metavar="WORD", help="only seeds that inject a cause with this word")
    arguments.add_argument("--no-fixes", action="store_true", help="do not run the fixes")
    arguments.add_argument("--most-minutes", type=float, default=600.0, help="no seed is begun after so many")
    arguments.add_argument(
        "--reread", action="store_true", help="judge the runs that DIR has by today's rules; run nothing"
    )
    arguments.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and neighbours are ended on the way out
    if controller() is None:
        raise SystemExit(
            "no cgroup with a CPU quota can be made here (root, and a writable cpu controller, are needed)"
        )
    FORKS.set_forkserver_preload(["flatout.commands.train", "torch._dynamo", "scenarios", "causes", "generate"])
    given.dir.mkdir(parents=True, exist_ok=True)
    make_datasets(given.dir)
    kept = given.dir / "generated.json"
    rows = {row["seed"]: row for row in json.loads(kept.read_text())} if kept.exists() else {}
    wanted = [
        seed for seed in listed(given.seeds) if given.only in " ".join(cause.name for cause, _ in draw(seed).causes)
    ]
    if given.reread:
        rows = {seed: reread(given.dir, row) for seed, row in rows.items()}
    else:
        with S3Server(given.dir) as server, FaultProxy("127.0.0.1", server.port) as proxy:
            environment = {
                "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
            }  # fmt: skip
            play_seeds(Player(given.dir, proxy, environment), wanted, rows, kept, given)
    done = [rows[seed] for seed in wanted if seed in rows]
    if done:
        report(done, given.out, f"python benchmarks/verdicts/generate.py --seeds {given.seeds}", len(wanted))


if __name__ == "__main__":
    main()
