"""TraceML on the scenarios that a plain PyTorch script can show; its verdicts go beside ours.

    python benchmarks/verdicts/run_traceml.py --traceml VENV/bin/traceml --dir DIR

DIR is the one of run_scenarios.py; adds what is missing to DIR/traceml.json, which that puts into its table.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def names():
    """The keys of PLANS, read without importing what only TraceML's environment has."""
    tree = ast.parse((HERE / "plain_loop.py").read_text())
    plans = next(
        node for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PLANS"
    )
    return [key.value for key in plans.value.keys]


def verdict_of(folder):
    texts = sorted(folder.rglob("final_summary.txt"))
    found = re.search(r"Verdict: *([^|\n]+?) *\|?\n", texts[0].read_text()) if texts else None
    return found.group(1).strip() if found else "no verdict"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--traceml", type=Path, required=True)
    arguments.add_argument("--dir", type=Path, required=True)
    given = arguments.parse_args()
    logs, kept = given.dir / "traceml", given.dir / "traceml.json"
    verdicts = json.loads(kept.read_text()) if kept.exists() else {}
    logs.mkdir(exist_ok=True)
    for name in [each for each in names() if each not in verdicts]:
        run = re.sub(r"\W+", "-", name)
        shutil.rmtree(logs / run, ignore_errors=True)
        environment = {**os.environ, "SCENARIO": name, "DATA": str((given.dir / "data").resolve())}
        command = [
            given.traceml.resolve(),
            "run",
            "--logs-dir",
            logs.resolve(),
            "--run-name",
            run,
            HERE / "plain_loop.py",
        ]
        try:
            subprocess.run(
                command,
                env=environment,
                cwd=logs,
                capture_output=True,
                timeout=180,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            verdicts[name] = "did not end within 180 s"
            continue
        verdicts[name] = verdict_of(logs / run)
        print(f"{name}: {verdicts[name]}", flush=True)
        kept.write_text(json.dumps(verdicts, indent=1))


if __name__ == "__main__":
    main()
