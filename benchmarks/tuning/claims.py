"""`flatout tune`'s claim against the whole run repeated: each recipe is tuned, then trained as given and as tuned, in turns.

    python benchmarks/tuning/claims.py [--dir DIR] [--only WORD] [--seconds 1.5] [--rounds 2]

Recipes that DIR has already are not played again. Writes benchmarks/results/<date>-tune-claims.md.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "predictions"), str(ROOT / "tests")]

from generate import BASE, make_datasets  # noqa: E402


def emulated(base: float, each: float, **more: Any) -> dict[str, Any]:
    return {"emulated.base_seconds": base, "emulated.seconds_per_sample": each, "train.epochs": 4, **more}


CPU = {"device": "cpu", "threads": "auto", "train.epochs": 2}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "loading-bound, cache left open": ("big", emulated(0.002, 0.0003, **{"data.cache": "auto"})),
    "loading-bound, no cache": ("big", emulated(0.002, 0.0003)),
    "no workers": ("big", emulated(0.005, 0.0005, **{"data.workers": 0})),
    "compute-bound": ("small", emulated(0.03, 0.001)),
    "compute-bound, small batch": ("small", emulated(0.03, 0.0002, **{"data.batch_size": 8})),
    "large photos, cache left open": ("photos", emulated(0.002, 0.001, **{"data.cache": "auto", "data.batch_size": 8})),
    "large photos, cache in memory": (
        "photos",
        emulated(0.002, 0.001, **{"data.cache": "memory", "data.batch_size": 8}),
    ),
    "one epoch": ("big", emulated(0.005, 0.0005, **{"train.epochs": 1, "data.cache": "auto"})),
    "real CPU": ("small", CPU),
    "real CPU, no workers": ("big", {**CPU, "data.workers": 0, "data.batch_size": 16}),
}


def whole_run(settings: dict[str, Any], run: Path) -> float:
    shutil.rmtree(run, ignore_errors=True)
    recipe = run.with_suffix(".yaml")
    recipe.write_text("name: claim\n")
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "flatout", "train", str(recipe), "--run", str(run), *sets]
    environment = {**os.environ, "XDG_CACHE_HOME": f"{run}-cache"}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(f"{run}-cache", ignore_errors=True)
    return float(json.loads((run / "summary.json").read_text())["time"]["wall_seconds"])


def play(name: str, folder: Path, seconds: float, rounds: int) -> dict[str, Any]:
    from flatout.commands.tune import tune_recipe
    from flatout.config.loading import load_config

    data, settings = RECIPES[name]
    given = {**BASE, "validate.every_epochs": 1, "data.path": str(folder / "data" / data), **settings}
    recipe = load_config({"name": "claim"}, given).config.model_dump(mode="json", by_alias=True)
    tuned = tune_recipe(recipe, None, seconds, say=lambda text: print("  ", text, flush=True))
    plain, better = [], []
    for _ in range(rounds):
        plain.append(whole_run(given, folder / "runs" / "given"))
        better.append(whole_run({**given, **tuned.changes}, folder / "runs" / "tuned"))
    ratio = statistics.median(before / after for before, after in zip(plain, better, strict=True))
    claim = tuned.claim
    return {
        "name": name, "changes": dict(tuned.changes), "claim": claim.value, "low": claim.low, "high": claim.high,
        "given_seconds": plain, "tuned_seconds": better, "measured": ratio, "inside": claim.low <= ratio <= claim.high,
        "tune_seconds": tuned.seconds, "tried": len(tuned.trials), "grid": tuned.grid_size, "load": os.getloadavg()[0],
    }  # fmt: skip


def report(rows: list[dict[str, Any]], path: Path) -> None:
    inside, load = sum(row["inside"] for row in rows), statistics.fmean(row["load"] for row in rows)
    lines = [
        f"# What `flatout tune` claims of whole runs, {time.strftime('%Y-%m-%d')}", "",
        f"{inside} of {len(rows)} claims hold: the run as given over the run as tuned is inside the claimed interval. "
        f"`python benchmarks/tuning/claims.py`; 2 cores, no GPU, mean load {load:.1f}" + (": **not idle**." if load > 2 else "."), "",
        "| recipe | changes | claim | interval | given, s | tuned, s | measured | inside | tune took |", "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        changes = ", ".join(f"{key}={value}" for key, value in row["changes"].items()) or "none"
        both = [", ".join(f"{each:.1f}" for each in row[name]) for name in ("given_seconds", "tuned_seconds")]
        lines.append(
            f"| {row['name']} | {changes} | {row['claim']:.2f}x | {row['low']:.2f} to {row['high']:.2f} | {both[0]} | {both[1]} | "
            f"{row['measured']:.2f}x | {'yes' if row['inside'] else 'no'} | {row['tune_seconds']:.0f} s, {row['tried']} of {row['grid']} |"
        )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-claims"))
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seconds", type=float, default=1.5)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-tune-claims.md"
    )
    given = arguments.parse_args()
    folder = given.dir.resolve()
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    make_datasets(folder)
    os.chdir(folder)  # what tune writes stays there
    kept = folder / "claims.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for name in RECIPES:
        if given.only not in name or any(row["name"] == name for row in rows):
            continue
        rows.append(play(name, folder, given.seconds, given.rounds))
        print(json.dumps(rows[-1]), flush=True)
        with kept.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    if rows:
        report(rows, given.out)


if __name__ == "__main__":
    main()
