"""Who may write to a run, and what a run that is finished, running or dead looks like."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from flatout.errors import RunDirectoryError
from flatout.runs import RunDirectory, list_runs, read_run
from flatout.runs.directory import read_json, write_json, write_text

HOLD = (
    "import sys; from pathlib import Path; from flatout.runs import RunDirectory\n"
    "directory = RunDirectory(Path(sys.argv[1])); directory.lock(); print('locked', flush=True); sys.stdin.read()"
)


@contextmanager
def another_process_holding(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def make_run(root: Path, **summary: object) -> RunDirectory:
    root.mkdir(parents=True)
    directory = RunDirectory(root)
    write_text(directory.config, yaml.safe_dump({"name": root.name}))
    if summary:
        write_json(directory.summary, summary)
    return directory


def test_a_second_process_is_told_who_has_the_run(tmp_path: Path) -> None:
    root = tmp_path / "run"
    directory = RunDirectory(root)
    with another_process_holding(root) as process:
        assert directory.in_use()
        with pytest.raises(RunDirectoryError, match=f"{root} is in use by process {process.pid};"):
            directory.lock()
        process.kill()
        process.wait()
        assert not directory.in_use()
        directory.lock()  # nobody has to remove anything after a kill -9
    assert directory.in_use()
    directory.unlock()
    assert not directory.in_use()


def test_a_run_can_be_held_again_after_it_was_let_go(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.lock()
    with pytest.raises(RunDirectoryError, match="in use"):
        RunDirectory(tmp_path).lock()
    directory.unlock()
    directory.unlock()
    other = RunDirectory(tmp_path)
    other.lock()
    other.unlock()


def test_a_directory_nobody_ever_held_is_not_in_use(tmp_path: Path) -> None:
    assert not RunDirectory(tmp_path / "none").in_use()


def test_a_place_where_no_directory_can_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file/run"):
        with pytest.raises(RunDirectoryError, match=r"cannot be written to: .*; choose another --run DIR"):
            RunDirectory(root).lock()


def test_a_command_that_was_refused_leaves_no_trace(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs/new")
    directory.lock()
    directory.unlock()
    assert not (tmp_path / "runs").exists()
    make_run(tmp_path / "runs/old", status="completed")
    directory = RunDirectory(tmp_path / "runs/old")
    directory.lock()
    directory.unlock()
    assert read_run(tmp_path / "runs/old").status == "completed"


def test_setting_aside_loses_nothing(tmp_path: Path) -> None:
    moved = []
    for number in range(3):
        directory = make_run(tmp_path / "run", status="completed", number=number)
        moved.append(directory.set_aside())
        assert not directory.root.exists()
    assert [read_json(path / "summary.json")["number"] for path in moved] == [0, 1, 2]


def test_a_dead_run_is_read_as_failed(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", run="mine", status="running", attempts=2)
    run = read_run(tmp_path / "run")
    assert (run.name, run.status, run.summary["attempts"]) == ("mine", "failed", 2)
    assert "the same train command resumes" in run.summary["cause"]
    assert read_json(directory.summary)["status"] == "running"  # who reads does not write


def test_a_run_killed_before_its_first_summary_is_failed(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.name, run.status) == ("run", "failed")
    assert not (tmp_path / "run/summary.json").exists()


def test_a_living_run_is_running_until_its_process_dies(tmp_path: Path) -> None:
    root = tmp_path / "run"
    directory = make_run(root)
    with another_process_holding(root) as process:
        assert read_run(root).status == "running"  # not even a summary yet
        write_json(directory.summary, {"run": "run", "status": "running"})
        assert read_run(root).status == "running"
        process.kill()
        process.wait()
        assert read_run(root).status == "failed"


@pytest.mark.parametrize("status", ["completed", "stopped", "failed"])
def test_a_final_status_stays(tmp_path: Path, status: str) -> None:
    make_run(tmp_path / "run", status=status, cause="because")
    assert read_run(tmp_path / "run").summary == {"status": status, "cause": "because"}


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no run in .*nowhere; `flatout runs` lists"):
        read_run(tmp_path / "nowhere")
    directory = make_run(tmp_path / "broken", status="completed")
    directory.config.write_text("train: {epochs: 3")
    with pytest.raises(RunDirectoryError, match=r"config\.yaml is not valid YAML") as caught:
        read_run(tmp_path / "broken")
    assert "\n" not in str(caught.value)


def test_runs_are_listed_by_name(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "runs") == []
    for name in ("b", "a;touch x", "c"):
        make_run(tmp_path / "runs" / name, run=name, status="completed")
    (tmp_path / "runs/no run").mkdir()
    (tmp_path / "runs/file.txt").write_text("")
    assert [run.name for run in list_runs(tmp_path / "runs")] == ["a;touch x", "b", "c"]


def test_a_run_is_read_with_the_rows_that_count(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run", status="stopped")
    directory.steps.write_text("attempt,step,epoch,loss\r\n1,1,0,0.5\r\n1,2,0,0.4\r\n2,2,0,0.3\r\n2,3,0,0.")
    directory.epochs.write_text("attempt,epoch,top1\r\n1,0,0.5\r\n")
    run = read_run(tmp_path / "run")
    assert [(row.step, row.loss) for row in run.steps] == [(1, 0.5), (2, 0.3)]
    assert [row["top1"] for row in run.epochs] == ["0.5"]
    assert run.config == {"name": "run"}


def test_looking_at_runs_does_not_load_torch() -> None:
    script = (
        "import sys, flatout.runs, flatout.reports.terminal, flatout.reports.listing, flatout.timeline.reading\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
