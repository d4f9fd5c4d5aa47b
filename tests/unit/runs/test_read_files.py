"""Files beside the tables and the summary: what their readers count on is checked where they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.commands.predict import calibration_of
from flatout.config.loading import load_config
from flatout.errors import RunDirectoryError
from flatout.runs import Run, RunDirectory
from flatout.runs.reading import read_link

LINK: dict[str, Any] = {
    "nodes": [{"host": "a"}, {"host": "b"}],
    "latency_seconds": 1e-4,
    "bits_per_second": 1e9,
    "predicted": {"gradient_bytes": 100, "buckets": [{"bytes": 100, "ready_seconds": 0.1}]},
}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 2},
        {"latency_seconds": "x"},
        {"bits_per_second": [1]},
        {"backend": {}},
        {"predicted": {"buckets": {"a": 1}}},
        {"predicted": {"buckets": [{"bytes": 1}]}},
        {"predicted": {"buckets": [None]}},
    ],
)
def test_a_damaged_link(tmp_path: Path, change: dict[str, Any]) -> None:
    directory = RunDirectory(tmp_path)
    assert read_link(directory) == {}
    directory.link.write_text(json.dumps(LINK))
    assert read_link(directory) == LINK
    directory.link.write_text(json.dumps({**LINK, **change}))
    with pytest.raises(RunDirectoryError, match=r"cannot read .*link.json: "):
        read_link(directory)


@pytest.mark.parametrize("calibration", ["x", [1], 5, {"settings": 1}])
def test_a_damaged_probe(tmp_path: Path, calibration: Any) -> None:
    (tmp_path / "probe.json").write_text(json.dumps({"calibration": calibration}))
    with pytest.raises(RunDirectoryError, match=r"cannot read .*probe.json: "):
        calibration_of(Run(tmp_path, {}, {}, {}, [], []), load_config({"name": "x"}).config)
