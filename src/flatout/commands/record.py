"""Record any command that trains with PyTorch: the same run directory as of flatout's own runs."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import UserError
from flatout.recording.launching import describe_end, run_command
from flatout.recording.launching import end_like as end_like
from flatout.recording.opening import next_free, open_collector
from flatout.runs import Run, RunDirectory, read_run
from flatout.units import format_seconds


def record(
    command: Sequence[str], run: Path | None = None, name: str | None = None, instance: str | None = None
) -> tuple[Run, int]:
    """Run `command` under the recorder. The run, and the command's return code (negative for a signal)."""
    if not command:
        raise UserError("no command to record; write it after --, as in: flatout record -- python train.py")
    directory = RunDirectory(run or next_free(Path("runs") / (name or default_name(command))))
    collector = open_collector(directory, name or directory.root.name, instance, list(command))
    try:
        try:
            collector.mark_start()
            code = run_command(command, directory.root, collector.update)
            collector.mark_end()
        except UserError as error:
            collector.end("failed", str(error))
            raise
        collector.read()
        status, cause = describe_end(code, collector.told_cause(), collector.was_doing(), collector.steps)
        collector.end(status, cause)
    finally:
        directory.unlock()
    return read_run(directory.root), code


def default_name(command: Sequence[str]) -> str:
    """`train` for python train.py, `package.tool` for python -m package.tool, else the program's own name."""
    words = list(command)
    script = next((Path(word).stem for word in words if word.endswith(".py")), None)
    if script is None and "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
    return re.sub(r"[^\w.-]+", "-", script or Path(words[0]).name).strip(".-") or "recorded"


def say_recorded(run: Run) -> None:
    """One line on stderr: standard output is the script's own."""
    time_, missing = run.summary.get("time") or {}, (run.summary.get("recorded") or {}).get("missing") or []
    wall = format_seconds(time_.get("wall_seconds") or 0.0)
    sys.stderr.write(
        f"flatout: recorded {len(run.steps)} steps in {wall} into {run.directory}; flatout explain {run.directory}\n"
    )
    for each in missing:
        sys.stderr.write(f"flatout: not recorded: {each}\n")
