"""Starts a command with the recorder in its environment, waits, and ends as the command ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

import flatout
from flatout.errors import UserError

_INJECT = Path(__file__).parent / "inject"
_UPDATE_SECONDS = 2.0
_WAITING = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def recorded_environment(run: Path, environment: Mapping[str, str], at_start: Mapping[str, str]) -> dict[str, str]:
    """The command's own environment, with the recorder first on PYTHONPATH. What this process set for itself since it
    started (`at_start`) is not the command's."""
    kept = {name: value for name, value in environment.items() if name not in _WAITING or name in at_start}
    path = environment.get("PYTHONPATH")
    return {
        **kept,
        "PYTHONPATH": f"{_INJECT}{os.pathsep}{path}" if path else str(_INJECT),
        "FLATOUT_RECORD": str(run.absolute()),
        "FLATOUT_RECORD_PACKAGE": str(Path(flatout.__file__).parent),
    }


def environment_at_start() -> dict[str, str]:
    """As the kernel keeps it; where it does not, as it is now."""
    try:
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in (pair.partition(b"=") for pair in pairs)}
    except OSError:
        return dict(os.environ)


def threads_spin() -> bool:
    """Whether the command's compute threads keep their cores while they wait for each other: OpenMP's default."""
    return not _WAITING & environment_at_start().keys()


def run_command(command: Sequence[str], run: Path, update: Callable[[], None]) -> int:
    """The command's return code, negative for a signal. Signals go on to it: how it ends is its own decision."""
    environment = recorded_environment(run, os.environ, environment_at_start())
    try:
        process = subprocess.Popen(list(command), env=environment)
    except OSError as error:
        raise UserError(
            f"cannot start {command[0]!r}: {error.strerror}; give the command as you would without flatout"
        ) from None

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)  # a terminal sends it to both
    try:
        return _wait(process, update)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], update: Callable[[], None]) -> int:
    due = time.monotonic() + _UPDATE_SECONDS
    while True:
        try:
            return process.wait(timeout=max(0.05, due - time.monotonic()))
        except subprocess.TimeoutExpired:
            update()
            due = time.monotonic() + _UPDATE_SECONDS


def end_like(code: int) -> None:
    """Exit with the command's code, or die of the signal that it died of."""
    if code >= 0:
        sys.stdout.flush()
        sys.exit(code)
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
    time.sleep(1.0)  # a signal that does not end a process
    sys.exit(128 - code)


def describe_end(code: int, told: str | None, was_doing: Mapping[str, object], steps: int) -> tuple[str, str | None]:
    """Status and cause of the run, from how the command ended and what its processes said."""
    if code == 0:
        return "completed", None
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    interrupted = code in (-signal.SIGINT, 130) or (told or "").startswith("KeyboardInterrupt")
    doing = ""
    if was_doing.get("part"):
        place = f" at {was_doing['where']}" if was_doing.get("where") else ""
        doing = f"; last seen in {str(was_doing['part']).replace('_', ' ')}{place}"
        if isinstance(seconds := was_doing.get("seconds"), float) and seconds > 10:
            doing += f", for {seconds:.0f} s"
    if interrupted:
        return "stopped", f"interrupted after step {steps}{doing}"
    if told is not None:
        return "failed", f"{told}; {how} after step {steps}"
    return "failed", f"the command ended with {how} after step {steps}{doing}"
