"""A short run of tests/fuzz/pack_fuzz.py: in its own process, since a crash is one of the things it looks for."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[2] / "fuzz" / "pack_fuzz.py"


@pytest.mark.parametrize("compiled", ["1", "0"])
def test_two_thousand_damaged_inputs(compiled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_NATIVE", compiled)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, str(FUZZER), "1000", compiled], capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "1000 inputs" in done.stdout
