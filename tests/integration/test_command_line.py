"""The command line as typed: help, and what is (not) imported for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from training import installed_command

COMMANDS = [
    (), ("demo",), ("train",), ("lr-find",), ("runs",), ("report",), ("config",), ("config", "show"), ("data",),
    ("data", "make"), ("data", "make", "shapes"),
]  # fmt: skip


@pytest.mark.parametrize("names", COMMANDS, ids=lambda names: " ".join(names) or "flatout")
def test_help(tmp_path: Path, names: tuple[str, ...]) -> None:
    answer = installed_command(*names, "--help", cwd=tmp_path)
    assert answer.code == 0
    assert "Usage" in answer.out
    assert answer.err == ""
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_tested_above(tmp_path: Path) -> None:
    """A new command must be added to the list; those that only others know are named here."""
    from flatout.cli import register
    from flatout.cli.main import app

    register()
    known = {names[0] for names in COMMANDS if names}
    registered = {str(each.name or each.callback.__name__) for each in app.registered_commands if each.callback}
    groups = {str(each.name) for each in app.registered_groups}
    untested = (registered | groups) - known
    for name in sorted(untested):
        assert installed_command(name, "--help", cwd=tmp_path).code == 0


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import flatout",
        "import flatout.cli.main",
        "from flatout.cli import register; register()",
        "import flatout.runs",
        "import flatout.cost",
        "import flatout.reports.terminal, flatout.reports.listing, flatout.reports.configuration",
        "import flatout.commands.show",
        "import flatout.config.loading",
        "import flatout.sampling, flatout.timeline, flatout.storage",
        "import flatout.data.loading.process_pool",
        "import sys; sys.argv = ['flatout', '--help']\nfrom flatout.cli.main import run\ntry: run()\nexcept SystemExit: pass",
    ],
)
def test_without_torch(statement: str) -> None:
    assert not {"torch", "torchvision", "timm"} & loaded_by(statement)


def test_looking_at_runs_needs_no_torch(tmp_path: Path, uninterrupted: Path) -> None:
    for arguments in (["runs", str(uninterrupted.parent)], ["report", str(uninterrupted)]):
        loaded = loaded_by(
            f"sys.argv = ['flatout', *{arguments!r}]\nfrom flatout.cli.main import run\n"
            "try: run()\nexcept SystemExit as end: assert not end.code"
        )
        assert "torch" not in loaded


def test_names_of_the_library_are_lazy() -> None:
    assert "torch" in loaded_by("import flatout; flatout.train")


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_compute_threads_do_not_spin_unless_the_user_wants_it(
    own: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host whose cores others use too, a thread that spins takes the core from the one it waits for."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    script = "import os, sys; sys.argv = ['flatout', '--help']; from flatout.cli.main import run; run()\n"
    script += "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == f"{expected} False"
