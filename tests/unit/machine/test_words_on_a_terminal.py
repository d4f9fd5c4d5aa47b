"""What files say reaches a terminal as words, never as commands to it."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.machine.lasting_output import without_controls

FLATOUT = Path(sys.executable).with_name("flatout")
EVIL = "\x1b[2J\x1b]0;owned\x07\x9b2Jname\x7f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m\n\ttab", "\x1b[1;31mred\x1b[0m\n\ttab"),
        (EVIL, "\ufffd[2J\ufffd]0;owned\ufffd\ufffd2Jname\ufffd"),
        ("over\rwritten\x1b[1A\x1b[2K", "over\ufffdwritten\ufffd[1A\ufffd[2K"),
    ],
)
def test_colours_stay_and_the_rest_is_shown(text: str, shown: str) -> None:
    assert without_controls(text, with_progress=False) == shown


def test_a_progress_bar_moves() -> None:
    bar = "\r\x1b[2K\x1b[1A\x1b[?25l50 %\x1b[?25h"
    assert without_controls(bar, with_progress=True) == bar


@pytest.mark.parametrize("words", [("runs", "."), ("explain", "evil")])
def test_names_in_a_run_directory_command_no_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/config.yaml").write_text("name: x\n")
    summary = {"run": EVIL, "status": "failed", "cause": f"no {EVIL}"}
    (tmp_path / "evil/summary.json").write_text(json.dumps(summary))
    ours, theirs = pty.openpty()
    with subprocess.Popen([FLATOUT, *words], cwd=tmp_path, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # nobody writes to it any more
                break
        assert process.wait() == 0, shown
    os.close(ours)
    assert b"owned" in shown
    assert not [code for code in (b"\x1b[2J", b"\x1b]", b"\x07", "\x9b".encode()) if code in shown], shown
