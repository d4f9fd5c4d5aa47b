"""Does `flatout explain` of a recorded script name what was made slow? One plain script (train_script.py), one fault each.

    python benchmarks/recording/scenarios.py --keep runs/scenarios --out benchmarks/results
    python benchmarks/recording/scenarios.py --keep runs/scenarios --traceml VENV     # the same scripts under TraceML

What is in --keep already is not run again. A scenario is right where the verdict's cause is the one expected and the
verdict, or the finding it comes from, says what it should: nothing is set aside. Needs an idle machine, and root for the
slow link (a network namespace of its own).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dated_results import current_commit, publish

SCRIPT = Path(__file__).with_name("train_script.py")
FLATOUT = Path(sys.executable).with_name("flatout")


@dataclass(frozen=True)
class Scenario:
    name: str
    options: str
    cause: str
    says: str = ""
    """Must be in the verdict, or in the finding that it comes from."""
    traceml: str = "-"
    """Words of TraceML's diagnoses that name the same, with | between them; - where it has none."""
    ranks: int = 1
    burners: int = 0
    """Processes beside it that take the cores."""
    link_mbit: int = 0
    ended_after: float = 0.0
    """Seconds; then it is told to end (SIGTERM)."""


LISTED = (
    Scenario("workers 0", "--workers 0 --sample-spin 0.004", "data-workers", "num_workers=", "INPUT_BOUND"),
    Scenario(
        "too few workers",
        "--workers 1 --sample-spin 0.0035 --persistent",
        "data-workers",
        "num_workers=2",
        "INPUT_BOUND",
    ),
    Scenario("slow decode", "--jpegs {jpegs} --persistent", "data-decode", "train_script.py", "INPUT_BOUND"),
    Scenario("slow disk", "--sample-sleep 0.012 --persistent", "data-fetch", "train_script.py", "INPUT_BOUND"),
    Scenario(
        "python augmentation", "--sample-spin 0.009 --persistent", "data-augment", "train_script.py", "INPUT_BOUND"
    ),
    Scenario("augmentation in the loop", "--batch-spin 0.03 --persistent", "host", "train_script.py", "RESIDUAL_HEAVY"),
    Scenario("item() every step", "--read-back 0.05 --persistent", "host", "train_script.py", "RESIDUAL_HEAVY"),
    Scenario("tiny batch", "--batch 1 --step-seconds 0 --layers 60 --no-loader", "host", "batch_size="),
    Scenario(
        "checkpoint every step",
        "--save-every 1 --save-megabytes 12 --persistent",
        "checkpoint",
        "save every",
        "RESIDUAL_HEAVY",
    ),
    Scenario("long validation", "--validate 20 --epoch-batches 20 --persistent", "validation", "validat"),
    Scenario("slow start", "--start-sleep 15", "startup", "train_script.py"),
    Scenario(
        "straggler",
        "--late-rank 0.03 --workers 0",
        "straggler",
        "Rank 1",
        "STRAGGLER",
        ranks=2,
    ),
    Scenario("slow link", "--width 512 --workers 0", "network", "gradients", ranks=2, link_mbit=200),
    Scenario("memory growth", "--leak-megabytes 2 --persistent --seconds 25", "memory", "grows", "CREEP|PROCESS_RSS"),
    Scenario(
        "busy host", "--step-seconds 0 --step-spin 0.03 --no-loader", "host", "other processes", "HIGH_CPU", burners=4
    ),
    Scenario("idle between epochs", "--idle 1.0 --epoch-batches 25 --persistent", "host", "sleep"),
    Scenario(
        "non-persistent workers", "--worker-start 0.6 --epoch-batches 20", "epoch-start", "persistent_workers=True"
    ),
    Scenario("print storm", "--prints 3000 --persistent", "host", "print(", "RESIDUAL_HEAVY"),
    Scenario(
        "two optimizers, workers 0",
        "--optimizers 2 --workers 0 --sample-spin 0.004",
        "data-workers",
        "num_workers=",
        "INPUT_BOUND",
    ),
    Scenario("loss is NaN", "--nan-after 20", "diverged", "loss"),
    Scenario("crash", "--crash-after 30", "unexplained", "a label is out of range"),
    Scenario("healthy, accumulate 4", "--accumulate 4 --persistent", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL"),
    Scenario("healthy, 2 workers", "--persistent --seconds 32", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL"),
    Scenario("healthy, no loader", "--no-loader", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL"),
    Scenario("healthy, 2 ranks", "--workers 0", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL", ranks=2),
    Scenario("healthy, workers 0", "--workers 0 --step-seconds 0.06", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL"),
)
# thought of after the rules were written, to see what becomes of causes that nobody had in mind
INVENTED = (
    Scenario("collate in Python", "--collate-spin 0.12 --persistent", "data-augment", "train_script.py", "INPUT_BOUND"),
    Scenario(
        "sampler weighs anew every epoch",
        "--epoch-spin 0.8 --epoch-batches 20 --persistent",
        "epoch-start",
        "train_script.py",
    ),
    Scenario("pickle every step", "--pickle-megabytes 20 --persistent", "checkpoint", "pickle.dump", "RESIDUAL_HEAVY"),
    Scenario(
        "garbage collected every step",
        "--collect-garbage --persistent --step-seconds 0.01",
        "host",
        "gc.collect",
        "RESIDUAL_HEAVY",
    ),
    Scenario(
        "norms read back one by one",
        "--clip-by-hand --fused --layers 300 --step-seconds 0 --batch 64 --no-loader",
        "host",
        "train_script.py",
        "RESIDUAL_HEAVY",
    ),
    Scenario(
        "validation with gradients",
        "--validate 20 --epoch-batches 20 --eval-with-grad --persistent",
        "validation",
        "validat",
    ),
    Scenario(
        "anomaly detection left on",
        "--anomaly --layers 60 --step-seconds 0 --batch 64 --no-loader",
        "host",
        "detect_anomaly",
    ),
    Scenario(
        "weights copied every step",
        "--copies 4 --width 512 --layers 6 --step-seconds 0.01 --persistent",
        "host",
        "deepcopy",
        "RESIDUAL_HEAVY",
    ),
    Scenario("a sample that cannot be read", "--bad-sample 100", "unexplained", "cannot identify image file"),
    Scenario("an iterator for every batch", "--iterate-anew", "epoch-start", "iter(loader)", "INPUT_BOUND"),
    Scenario("hangs", "--hang-after 30", "unexplained", "train_script.py", ended_after=25.0),
    Scenario("batches from a thread", "--thread-sleep 0.08 --no-loader", "data-workers", "which runs meanwhile"),
    Scenario(
        "a loader for every epoch",
        "--rebuild --persistent --worker-start 0.6 --epoch-batches 20",
        "epoch-start",
        "build it once",
    ),
    Scenario(
        "validation every 5 steps",
        "--validate 10 --validate-steps 5 --persistent",
        "validation",
        "steps instead of every",
    ),
    Scenario("healthy, scaled loss", "--scaler --persistent", "compute", "", "COMPUTE_BOUND|BALANCED|NORMAL"),
)


def make_jpegs(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    folder.mkdir(exist_ok=True)
    noise = np.random.default_rng(0)
    for number in range(8):
        pixels = noise.integers(0, 255, (800, 800, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)


def folder_of(scenario: Scenario, home: Path) -> Path:
    return home / "".join(letter if letter.isalnum() else "-" for letter in scenario.name)


def launch(scenario: Scenario, home: Path, folder: Path, traceml: Path | None) -> list[str]:
    options = scenario.options.format(jpegs=home / "jpegs").split()
    if traceml is not None:
        ranks = ["--nproc-per-node", str(scenario.ranks)]
        command = [
            str(traceml / "bin/traceml"),
            "run",
            str(SCRIPT),
            "--logs-dir",
            str(folder / "traceml"),
            "--run-name",
        ]
        command += ["it", *ranks, "--args", "--traceml", *options]
    else:
        torchrun = str(Path(sys.executable).with_name("torchrun"))
        launcher = [torchrun, "--standalone", "--nproc-per-node", str(scenario.ranks)]
        launcher = launcher if scenario.ranks > 1 else [sys.executable]
        command = [str(FLATOUT), "record", "--run", str(folder / "run"), "--", *launcher, str(SCRIPT), *options]
    if scenario.link_mbit:
        limit = f"tc qdisc add dev lo root tbf rate {scenario.link_mbit}mbit burst 512kb latency 400ms"
        command = ["unshare", "-n", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh", *command]
    return command


def run(scenario: Scenario, home: Path, traceml: Path | None) -> None:
    folder = folder_of(scenario, home)
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(scenario.burners)]
    try:
        with (folder / "out.txt").open("w") as out:
            command = launch(scenario, home, folder, traceml)
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=environment)
            try:
                process.wait(scenario.ended_after or 120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
                process.wait()
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    if traceml is None:
        answer = subprocess.run(
            [str(FLATOUT), "explain", str(folder / "run"), "--json"], capture_output=True, text=True
        )
        (folder / "explained.json").write_text(answer.stdout)
        (folder / "commit.txt").write_text(current_commit())


def judge(scenario: Scenario, home: Path) -> dict | None:
    """None where it was not run."""
    folder = folder_of(scenario, home)
    if not (folder / "explained.json").exists():
        return None
    explained = json.loads((folder / "explained.json").read_text())
    time_ = json.loads((folder / "run/summary.json").read_text())["time"]
    leading = next((each for each in explained["findings"] if each["cause"] == explained["cause"]), {})
    said = json.dumps(leading, ensure_ascii=False) + explained["verdict"]
    theirs = judge_traceml(scenario, folder / "traceml/it/final_summary.json")
    return {
        "right": explained["cause"] == scenario.cause and scenario.says in said,
        "cause": explained["cause"],
        "unattributed": time_["parts"]["unattributed"] / time_["wall_seconds"],
        "wall": time_["wall_seconds"],
        "verdict": explained["verdict"],
        "commit": (folder / "commit.txt").read_text(),
        "traceml": theirs,
    }


def judge_traceml(scenario: Scenario, summary: Path) -> tuple[str, bool] | None:
    """Its first diagnosis, and whether that or any other it makes is the right one; None where it was not run."""
    if not summary.exists():
        return None
    told = json.loads(summary.read_text())
    sections = [
        told["primary_diagnosis"],
        *(told[name].get("diagnosis") or {} for name in ("step_memory", "system", "process")),
    ]
    kinds = [each.get("kind") or "none" for each in sections]
    return kinds[0], any(word in kind for kind in kinds for word in scenario.traceml.split("|"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder for the runs; what is there is not run again")
    parser.add_argument("--judge", action="store_true", help="run nothing: judge what is in --keep")
    parser.add_argument("--seconds", type=float, default=1e9, help="start none after this long")
    parser.add_argument("--traceml", type=Path, help="environment with traceml-ai: run it instead of flatout record")
    options = parser.parse_args()
    options.keep.mkdir(exist_ok=True)
    make_jpegs(options.keep / "jpegs")
    began = time.monotonic()
    result = "traceml/it/final_summary.json" if options.traceml else "explained.json"
    for scenario in LISTED + INVENTED:
        done = (folder_of(scenario, options.keep) / result).exists()
        if options.only not in scenario.name or done or options.judge or time.monotonic() - began > options.seconds:
            continue
        run(scenario, options.keep, options.traceml)
        if (row := judge(scenario, options.keep)) is not None:
            print("right" if row["right"] else "WRONG", scenario.name, "|", row["verdict"], row["traceml"], flush=True)
    text = "\n".join([table("Asked for", LISTED, options.keep), table("Invented afterwards", INVENTED, options.keep)])
    publish("recording-scenarios", "Recorded scripts: is the cause named?", text, options.out)


def table(title: str, scenarios: tuple[Scenario, ...], home: Path) -> str:
    lines = [
        f"## {title}",
        "",
        "| scenario | expected | cause | right | unattributed | of | TraceML's first | names it | verdict | code |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [(scenario, judge(scenario, home)) for scenario in scenarios]
    for scenario, row in rows:
        if row is None:
            lines.append(f"| {scenario.name} | {scenario.cause} | not run | | | | | | | |")
            continue
        first, named = row["traceml"] or ("not run", False)
        lines.append(
            f"| {scenario.name} | {scenario.cause} | {row['cause']} | {'yes' if row['right'] else 'no'} | "
            f"{100 * row['unattributed']:.2f} % | {row['wall']:.0f} s | {first} | "
            f"{'yes' if named else 'no' if row['traceml'] else ''} | {row['verdict']} | {row['commit']} |"
        )
    judged = [row for _, row in rows if row is not None]
    theirs = [row["traceml"][1] for row in judged if row["traceml"]]
    note = f"{sum(row['right'] for row in judged)} of {len(judged)} right"
    return "\n".join([*lines, "", f"{note}; TraceML {sum(theirs)} of {len(theirs)}." if theirs else f"{note}.", ""])


if __name__ == "__main__":
    main()
