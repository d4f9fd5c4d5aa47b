"""Where a benchmark's tables go: on the terminal, and into a dated file with the command, the commit and the machine."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


def describe_machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "n/a")
    memory_gib = psutil.virtual_memory().total / 2**30
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {system}"


def current_commit() -> str:
    answer = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return answer.stdout.strip() or "n/a"


def own_command() -> str:
    return shlex.join(["python", *sys.argv])


def publish(name: str, title: str, text: str, out: Path | None) -> None:
    """Print the tables; with `out`, a file or a folder (then <date>-<name>.md in it), write them there, too."""
    print(text)
    if out is None:
        return
    target = out / f"{date.today().isoformat()}-{name}.md" if out.is_dir() else out
    head = f"# {title}, {date.today().isoformat()}\n\n`{own_command()}`, flatout at {current_commit()}.\n\n{describe_machine()}."
    target.write_text(f"{head}\n\n{text}")
    print(f"written: {target}")
