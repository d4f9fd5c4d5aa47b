"""`flatout tune` against the defaults of a plain PyTorch script, and against every combination of its grid.

    python benchmarks/tuning/run.py --dir DIR [--only WORD] [--exhaustive]

DIR is the one of the verdicts. "Plain" is what a first script does: no workers, contiguous fp32, the batch as given.
Writes DIR/tuning.json and benchmarks/results/<date>-tuning.md. Speeds are samples/s, medians of interleaved rounds.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks" / "verdicts")]

from run_scenarios import BASE, make_datasets  # noqa: E402

SECONDS, ROUNDS, FINALISTS = 2.5, 3, 3
CASES = {
    "emulated T4-like, large JPEGs": ("big", {"emulated.base_seconds": 0.005, "emulated.seconds_per_sample": 0.0004, "data.batch_size": 32}),
    "emulated, small images": ("small", {"emulated.base_seconds": 0.02, "emulated.seconds_per_sample": 0.0001, "data.batch_size": 32}),
    "real CPU, small images": ("small", {"device": "cpu", "threads": "auto", "data.batch_size": 32}),
    "real CPU, translation": ("multi30k", {"task": "translation", "device": "cpu", "data.source_language": "en", "data.target_language": "de",
                              "data.batch_tokens": 256, "data.vocabulary.size": 6000, "model.name": "transformer-small", "model.width": 0.5}),
    "emulated, large JPEGs, batch of 8": ("big", {"emulated.base_seconds": 0.02, "emulated.seconds_per_sample": 0.0004, "data.batch_size": 8}),
    "real CPU, large JPEGs": ("big", {"device": "cpu", "threads": "auto", "data.batch_size": 16}),
}  # fmt: skip
PLAIN = {"data.workers": 0, "train.channels_last": False}


def speed(recipe, changes):
    from flatout.config.loading import load_config
    from flatout.training.measuring import measure_apart

    config = load_config(recipe, changes).config.model_dump(mode="json", by_alias=True)
    return measure_apart(config, SECONDS).samples_per_second


def hopeless(tuned):
    """Values that were tried on the leader, alone, and halved its speed (16 bits on a CPU that has none: a tenth)."""
    found = []
    for key, values in tuned.axes.items():
        for value in values:
            tried = [each for each in tuned.trials if each.setting == {**tuned.chosen.setting, key: value}]
            if key == "train.precision" and tried and 0 < tried[0].speed < 0.5 * tuned.chosen.speed:
                found.append((key, value))
    return found


def play(name, data, settings, folder, exhaustive):
    from flatout.commands.tune import tune_recipe
    from flatout.config.loading import load_config
    from flatout.diagnosis.tuning import grid

    given = {**BASE, "data.path": str(folder / "data" / data), **settings, **PLAIN}
    if data == "multi30k":
        given = {**settings, "data.workers": 0, "data.path": str(ROOT.parent / "shared" / "data" / "multi30k")}
    recipe = load_config({"name": "tuned"}, given).config.model_dump(mode="json", by_alias=True)
    tuned = tune_recipe(recipe, None, SECONDS, say=lambda text: print("  ", text, flush=True))
    speeds = {"plain": [], "tuned": []}
    for _ in range(ROUNDS):
        speeds["plain"].append(speed(recipe, {}))
        speeds["tuned"].append(speed(recipe, tuned.changes))
    row = {
        "name": name, "plain": statistics.median(speeds["plain"]), "tuned": statistics.median(speeds["tuned"]), "speeds": speeds,
        "changes": dict(tuned.changes), "tried": len(tuned.trials), "grid": tuned.grid_size, "seconds": tuned.seconds,
    }  # fmt: skip
    if exhaustive:
        slow = hopeless(tuned)
        left = [each for each in grid(tuned.axes) if not any(each[key] == value for key, value in slow)]
        row["left_out"] = [f"{key}={value}" for key, value in slow]
        everything = {json.dumps(each): speed(recipe, each) for each in left}
        # the highest of many single measurements owes much to luck: the best few again, in turns with the chosen one
        first = sorted(everything, key=lambda each: -everything[each])[:FINALISTS]
        again = {each: [] for each in {*first, json.dumps(dict(tuned.chosen.setting))}}
        for _ in range(ROUNDS):
            for each, values in again.items():
                values.append(speed(recipe, json.loads(each)))
        row["best"], row["best_setting"] = max((statistics.median(values), key) for key, values in again.items())
        row["tuned_in_grid"] = statistics.median(again[json.dumps(dict(tuned.chosen.setting))])
    print(json.dumps(row), flush=True)
    return row


def report(rows, path):
    lines = [
        f"# Tune, {time.strftime('%Y-%m-%d')}", "",
        "Samples/s, medians of interleaved rounds on 2 cores, no GPU; `make bench-tune`. Plain: no workers, contiguous, fp32.", "",
        "| case | plain | tuned | gain | settings tried | changes | best of the whole grid |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        changes = ", ".join(f"{key}={value}" for key, value in row["changes"].items())
        best = (
            "-"
            if "best" not in row
            else f"{row['best']:.0f} ({row['best_setting']}); tuned reached {100 * row['tuned_in_grid'] / row['best']:.0f} % of it"
            + (f"; without {', '.join(row['left_out'])}" if row.get("left_out") else "")
        )
        lines.append(
            f"| {row['name']} | {row['plain']:.0f} | {row['tuned']:.0f} | {row['tuned'] / row['plain']:.2f}x | {row['tried']} of {row['grid']} | {changes} | {best} |"
        )
    path.write_text("\n".join(lines) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dir", type=Path, default=Path("/tmp/flatout-verdicts"))
    arguments.add_argument("--only", default="")
    arguments.add_argument("--exhaustive", action="store_true")
    given = arguments.parse_args()
    make_datasets(given.dir)
    kept = given.dir / "tuning.json"
    rows = {row["name"]: row for row in json.loads(kept.read_text())} if kept.exists() else {}
    for name, (data, settings) in CASES.items():
        if given.only in name:
            rows[name] = play(name, data, settings, given.dir.resolve(), given.exhaustive)
            kept.write_text(json.dumps(list(rows.values()), indent=1))
    report(rows.values(), ROOT / "benchmarks" / "results" / f"{time.strftime('%Y-%m-%d')}-tuning.md")


if __name__ == "__main__":
    main()
