"""flatout as it ships: its wheel, built once for a test run, and commands forked from a process that imports only it."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from training import Finished

ROOT = Path(__file__).parents[1]
_SERVER = """
import json, os, sys, traceback
import flatout.commands.train, flatout.commands.evaluate, flatout.commands.classify, flatout.commands.export, flatout.commands.init
import onnxruntime, onnxscript, torch._dynamo, torch.onnx._internal.exporter._core
from flatout.cli.main import run

for line in sys.stdin:
    cwd, output, *sys.argv[1:] = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(cwd)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{output}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        try:
            code = run() or 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run([*command, "--no-deps", "--no-build-isolation", "-q"], check=True)


def built_wheel(temporary: pytest.TempPathFactory) -> Path:
    """The first of several test processes builds it, the others wait."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            source = folder / "source"  # a build leaves files behind
            left_out = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
            shutil.copytree(ROOT / "src", source / "src", ignore=left_out)
            for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
                shutil.copy(ROOT / name, source)
            pip("wheel", source, "--wheel-dir", folder)
    (wheel,) = folder.glob("flatout-*.whl")
    return wheel


class ShippedCommand:
    """`flatout WORDS` of an installed wheel, in a folder."""

    def __init__(self, orders: IO[str], answers: IO[str], scratch: Path) -> None:
        self._orders = orders
        self._answers = answers
        self._scratch = scratch

    def __call__(self, *words: object, cwd: Path) -> Finished:
        output = self._scratch / "said"
        self._orders.write(json.dumps([str(cwd), str(output), *map(str, words)]) + "\n")
        self._orders.flush()
        code = int(self._answers.readline())
        return Finished(code, *(output.with_suffix(each).read_text(errors="replace") for each in (".out", ".err")))


@contextmanager
def shipped_commands(site: Path, scratch: Path) -> Iterator[ShippedCommand]:
    """torch is imported once; every command is a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "200"}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], cwd=scratch, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        yield ShippedCommand(server.stdin, server.stdout, scratch)
