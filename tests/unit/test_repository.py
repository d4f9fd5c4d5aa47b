"""The repository itself: what its README promises holds whatever lies about in it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_test_meets_what_lies_about_in_the_repository() -> None:
    assert not list(Path().iterdir())


def test_ci_gives_the_commands_of_the_readme_in_its_order() -> None:
    (block, *_) = re.findall(r"^```\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    promised = re.findall(r"^make \w+", block, re.MULTILINE)
    assert (
        re.findall(r"^make \w+", (ROOT / ".ci/run").read_text(), re.MULTILINE) == promised == ["make demo", "make test"]
    )


def test_lint_passes_over_runs_and_data(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name in ("runs/demo/a.py", "data/shapes/b.py", "src/flatout/data/c.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--show-files", tmp_path]
    listed = subprocess.run(ruff, check=True, capture_output=True, text=True)
    assert listed.stdout.split() == [str(tmp_path / "pyproject.toml"), str(tmp_path / "src/flatout/data/c.py")]


def steps_on_a_fresh_machine(target: str, folder: Path) -> str:
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        (folder / name).write_text((ROOT / name).read_text())
    return subprocess.run(["make", "-n", target], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_demo_installs_what_the_demo_needs(tmp_path: Path) -> None:
    steps = steps_on_a_fresh_machine("demo", tmp_path)
    assert all(word in steps for word in ("gcc", "torch==2.13.0", "-e ."))
    assert not any(word in steps for word in ("chromium", "redis", "fuse3", "[dev]"))


def test_the_tests_install_the_rest_and_installing_says_what_it_leaves_out(tmp_path: Path) -> None:
    assert all(word in steps_on_a_fresh_machine("test", tmp_path) for word in ("gcc", "chromium", "redis", "[dev]"))
    said = steps_on_a_fresh_machine("install", tmp_path).partition("Left out")[2]
    assert all(word in said for word in ("make test", "redis-server", "translation", "pip install"))


def test_the_floor_and_the_container_have_the_torch_that_is_tested() -> None:
    """FSDP's set_reshard_after_forward came after 2.7: a version nobody runs the tests on is no promise to make."""
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    (floor,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    container = (ROOT / "recipes/cluster/Containerfile").read_text()
    assert pinned.startswith(f"{floor}.")
    assert set(re.findall(r"pytorch/pytorch:([\d.]+)-cuda", container)) == {pinned}
    assert "pip install --no-cache-dir -c constraints.txt" in container  # else pip may replace the base's torch
