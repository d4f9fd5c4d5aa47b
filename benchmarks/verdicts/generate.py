"""Scenarios that nobody listed: one or two causes drawn with their strengths, and the verdict held against the truth.

    python benchmarks/verdicts/generate.py --seeds 0:100 [--dir DIR] [--only WORD] [--no-fixes] [--out FOLDER]

The truth is what was injected, and the counterfactual: the same run without it. Of two causes the one that, taken away,
makes the run shorter is the strongest. For every finding whose fix is a change of the recipe, the run with that change
is made, and what was promised is held against what it took. A seed takes two to five runs of 5 to 12 s each on an idle
machine. Rows are kept as they come (DIR/generated.json): a call that is interrupted goes on where it was, and several
calls add up. Writes <date>-verdicts-generated.json and .md to the folder of --out.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
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

from causes import JOBS, Cause, Injected, controller, draw, join, make_quota, pin  # noqa: E402
from run_scenarios import BASE, FORKS, compute, here, make_datasets, over_link  # noqa: E402
from scenarios import Scenario  # noqa: E402

from dated_results import current_commit, describe_machine  # noqa: E402
from servers.faults import Faults  # noqa: E402
from servers.proxy_client import FaultProxy  # noqa: E402
from servers.s3 import S3Server  # noqa: E402

WORTH = 1.05  # times as fast without a cause: less is no cause
AS_STRONG = 0.8  # of the seconds of the strongest: which of two is named does not matter
PROMISED = 1.10  # a gain that may not be promised for what is not there
NOISE = 1.10  # a run with a fix may take so much longer by chance
BUSY_CORES = 0.3  # of other work on this machine: what is measured beside it is marked


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

    def play(self, job: str, injected: Injected, name: str) -> dict[str, Any]:
        """One run; its seconds, and what explain says of it."""
        from flatout.commands.explain import explain
        from flatout.runs import read_run

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
        told, explained = read_run(run), explain(run)
        return {
            "seconds": told.summary["time"]["wall_seconds"], "cause": explained.cause,
            "healthy": explained.healthy, "verdict": explained.verdict,
            "findings": [finding.to_dict() for finding in explained.findings],
        }  # fmt: skip

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


def added(parts: Iterable[Injected]) -> Injected:
    total = Injected()
    for each in parts:
        total = total + each
    return total


def scenario_row(player: Player, seed: int, fixes: bool) -> dict[str, Any]:
    """Everything that is known of one seed."""
    job, chosen = draw(seed)
    name = f"seed-{seed}"
    ambient = psutil.cpu_percent(1.0) / 100 * (os.cpu_count() or 1)  # before anything is injected
    whole = player.play(job, added(each for _, each in chosen), name)
    without = {
        cause.name: player.play(job, added(each for other, each in chosen if other is not cause), f"{name}-without")["seconds"]
        for cause, _ in chosen
        if not cause.decides
    }  # fmt: skip
    row = {
        "seed": seed,
        "job": job,
        "causes": [cause.name for cause, _ in chosen],
        "strengths": [_strength(each) for _, each in chosen],
        **whole,
        "without": without,
    }
    row |= {"ambient_cores": ambient, "busy": ambient > BUSY_CORES, "load": os.getloadavg()[0]}
    row |= judged(row, [cause for cause, _ in chosen])
    row["fixes"] = list(_fixed_runs(player, job, chosen, whole, name)) if fixes else []
    return row


def _strength(injected: Injected) -> str:
    """In words; a patch by its function and arguments."""
    told = {name: value for name, value in vars(injected).items() if value and name != "patches"}
    for each in injected.patches:
        told[each.func.__name__] = [round(value, 4) for value in each.args]  # type: ignore[attr-defined]
    return ", ".join(
        f"{name}={value if not isinstance(value, Faults) else vars(value)}" for name, value in told.items()
    )


def _fixed_runs(
    player: Player, job: str, chosen: list[tuple[Cause, Injected]], whole: dict[str, Any], name: str
) -> Iterable[dict[str, Any]]:
    for finding in whole["findings"]:
        changes = finding["fix"]["changes"]
        if not changes or finding["gain"] is None:
            continue
        fixed = player.play(job, added([*(each for _, each in chosen), Injected(settings=changes)]), f"{name}-fixed")
        achieved = whole["seconds"] / fixed["seconds"] if fixed["seconds"] else 0.0
        gain = finding["gain"]
        yield {"finding": finding["id"], "changes": changes, "promised": gain, "achieved": achieved,
               "inside": gain["low"] <= achieved <= gain["high"], "slower": achieved < 1 / NOISE}  # fmt: skip


def judged(row: dict[str, Any], causes: list[Cause]) -> dict[str, Any]:
    """`truth` are the causes that count as right: the strongest, and what is nearly as strong. None that is worth a word
    is a clean bill, or its name."""
    by_name = {cause.name: cause for cause in causes}
    saved = {name: row["seconds"] - seconds for name, seconds in row["without"].items()}
    strong = {name: each for name, each in saved.items() if row["seconds"] >= WORTH * row["without"][name]}
    deciding = [cause.name for cause in causes if cause.decides]
    truth = deciding or [name for name in strong if strong[name] >= AS_STRONG * max(strong.values())]
    said = _without_ambient(row, causes)
    named = [name for name in truth if _names(by_name[name], said)]
    right = bool(named) if truth else said["healthy"] or any(_names(cause, said) for cause in causes)
    there = {word for cause in causes for word in cause.words}
    false = [
        finding["id"]
        for finding in said["findings"]
        if finding["cause"]
        and finding["cause"] not in there
        and (finding["gain"] or {"factor": 1.0})["factor"] > PROMISED
    ]
    return {"truth": truth, "saved_seconds": saved, "right": right, "false_causes": false}


def _without_ambient(row: dict[str, Any], causes: list[Cause]) -> dict[str, Any]:
    """On a machine that others used meanwhile they are a cause that nobody injected, and a verdict that names them is
    right: what is judged is the verdict on the rest."""
    if not row["busy"] or any("neighbour" in cause.name for cause in causes):
        return row
    rest = [each for each in row["findings"] if each["id"] != "busy-host" or "quota" in each["title"]]
    leading = next(
        (f for f in rest if f["cause"] and (f["gain"] is None or f["saved_seconds"] >= 0.05 * row["seconds"])), None
    )
    if leading is None:
        return {**row, "findings": rest, "cause": "compute", "healthy": True, "verdict": ""}
    return {
        **row,
        "findings": rest,
        "cause": leading["cause"],
        "healthy": False,
        "verdict": f"{leading['title']}; {leading['fix']['text']}",
    }


def _names(cause: Cause, row: dict[str, Any]) -> bool:
    return row["cause"] in cause.words and cause.says.lower() in row["verdict"].lower()


def report(rows: list[dict[str, Any]], out: Path, command: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{time.strftime('%Y-%m-%d')}-verdicts-generated"
    stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    quiet = [row for row in rows if not row["busy"]]
    lines = [f"# Verdicts on generated scenarios, {time.strftime('%Y-%m-%d')}", "", f"`{command}`, flatout at {current_commit()}.", "",
             f"{describe_machine()}. {len(rows) - len(quiet)} of {len(rows)} ran beside other work that took more than {BUSY_CORES} cores: "
             "they are in the second line only, and judged by what explain says besides that other work.", ""]  # fmt: skip
    for title, some in (("on a quiet machine", quiet), ("all", rows)):
        lines += [f"- {title}: {_figures(some)}" if some else f"- {title}: none"]
    lines += ["", "| seed | job | injected | truth | named | | seconds | without | promised and achieved | verdict |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in sorted(rows, key=lambda row: row["seed"]):
        mark = ("right" if row["right"] else "**wrong**") + (" (busy)" if row["busy"] else "")
        mark += f"; not there: {', '.join(row['false_causes'])}" if row["false_causes"] else ""
        without = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["without"].items())
        fixed = ", ".join(f"{each['finding']} {each['promised']['factor']:.2f} ({each['promised']['low']:.2f} to {each['promised']['high']:.2f}): {each['achieved']:.2f}" for each in row["fixes"])  # fmt: skip
        lines.append(
            f"| {row['seed']} | {row['job']} | {'; '.join(f'{n} ({s})' for n, s in zip(row['causes'], row['strengths'], strict=True)) or 'nothing'} "
            f"| {', '.join(row['truth']) or '-'} | {row['cause']} | {mark} | {row['seconds']:.1f} | {without} | {fixed} | {row['verdict']} |"
        )
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines[6:9]), f"\nwritten: {stem}.md", flush=True)


def _figures(rows: list[dict[str, Any]]) -> str:
    healthy = [row for row in rows if not row["causes"]]
    fixes = [each for row in rows for each in row["fixes"]]
    told = [
        f"{sum(row['right'] for row in rows)} of {len(rows)} verdicts are right",
        f"{sum(row['healthy'] for row in healthy)} of {len(healthy)} healthy runs get a clean bill",
        f"{sum(bool(row['false_causes']) for row in rows)} promise more than {100 * (PROMISED - 1):.0f} % for a cause that is not there",
        f"{sum(each['inside'] for each in fixes)} of {len(fixes)} promised gains are inside their interval",
        f"{sum(each['slower'] for each in fixes)} of {len(fixes)} fixes made the run slower by more than {100 * (NOISE - 1):.0f} %",
    ]
    if fixes:
        told.append(
            f"median of achieved over promised {statistics.median(each['achieved'] / each['promised']['factor'] for each in fixes):.2f}"
        )
    return "; ".join(told) + "."


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", default="0:100", metavar="A:B", help="from A up to, but without, B")
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-verdicts"))
    arguments.add_argument("--only", default="", metavar="WORD", help="only seeds that inject a cause with this word")
    arguments.add_argument("--no-fixes", action="store_true", help="do not run the fixes")
    arguments.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    given = arguments.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and neighbours are ended on the way out
    first, last = (int(part) for part in given.seeds.split(":"))
    if controller() is None:
        raise SystemExit(
            "no cgroup with a CPU quota can be made here (root, and a writable cpu controller, are needed)"
        )
    FORKS.set_forkserver_preload(["flatout.commands.train", "torch._dynamo", "scenarios", "causes", "generate"])
    given.dir.mkdir(parents=True, exist_ok=True)
    make_datasets(given.dir)
    kept = given.dir / "generated.json"
    rows = {row["seed"]: row for row in json.loads(kept.read_text())} if kept.exists() else {}
    wanted = [seed for seed in range(first, last) if given.only in " ".join(cause.name for cause, _ in draw(seed)[1])]
    with S3Server(given.dir) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        environment = {
            "AWS_ENDPOINT_URL": proxy.endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key,
        }  # fmt: skip
        player = Player(given.dir, proxy, environment)
        for number, seed in enumerate([seed for seed in wanted if seed not in rows], 1):
            started = time.monotonic()
            row = scenario_row(player, seed, not given.no_fixes)
            rows[seed] = row
            kept.write_text(json.dumps(list(rows.values()), indent=1))
            print(f"{'right' if row['right'] else 'WRONG'} seed {seed} ({number}, {time.monotonic() - started:.0f} s, load {row['load']:.1f}) {row['causes']} truth {row['truth']}: {row['cause']}\n       {row['verdict']}", flush=True)  # fmt: skip
    report([rows[seed] for seed in wanted], given.out, f"python benchmarks/verdicts/generate.py --seeds {given.seeds}")


if __name__ == "__main__":
    main()
