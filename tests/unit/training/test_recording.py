"""Records of a run: the summary says what its files say, and writing it costs the same in the last epoch as in the first."""

import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.loading import load_config
from flatout.data.batch import Failure, LoadStats
from flatout.data.source.dataset import Dataset, open_dataset
from flatout.data.source.shapes import make_shapes
from flatout.engine.devices import choose_device
from flatout.engine.loop import EpochRecord, StepRecord
from flatout.errors import BadFile
from flatout.runs import RunDirectory
from flatout.runs.summary import accuracy, throughput
from flatout.runs.tables import effective_rows, read_table
from flatout.timeline import Recorder
from flatout.training import recording
from flatout.training.recording import RunRecords

CONFIG = load_config({"device": "cpu", "monitor": {"interval_seconds": None}}).config


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data") / "shapes"
    for _ in make_shapes(folder, 2, 2, 16, 1):
        pass
    return open_dataset(CONFIG.data.model_copy(update={"path": str(folder)}))


def records_of(folder: Path, dataset: Dataset) -> RunRecords:
    folder.mkdir(exist_ok=True)
    return RunRecords(RunDirectory(folder), CONFIG, dataset, choose_device("cpu"), "constant")


def step(number: int, seconds: float, samples: int = 8) -> StepRecord:
    return StepRecord(number, 0, number - 1, samples, "digest", 1.0, 0.1, seconds, 0.0, time.time(), 0.0)


def epoch(number: int, top1: float) -> EpochRecord:
    return EpochRecord(number, number, 8, 1.0, {"top1": top1}, 0.1, time.time())


def summarised(records: RunRecords, status: str = "running") -> dict[str, Any]:
    return records.summarise(status, None, Recorder(None), LoadStats(), 0)


def read_again(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the whole tables say: the figures a summary must agree with."""
    steps = effective_rows(read_table(folder / "steps.csv"), "step")
    epochs = effective_rows(read_table(folder / "epochs.csv"), "epoch")
    speed = throughput([float(row["step_seconds"]) for row in steps], [int(row["samples"]) for row in steps])
    return speed, accuracy(epochs, "top1", True)


SECONDS = st.floats(1e-6, 1e4)
ATTEMPTS = st.lists(  # how far each attempt falls back, and its steps
    st.tuples(st.integers(0, 12), st.lists(st.tuples(SECONDS, st.integers(0, 512)), max_size=15)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(attempts=ATTEMPTS)
def test_the_summary_agrees_with_a_full_read_over_any_attempts(
    dataset: Dataset, attempts: list[tuple[int, list[tuple[float, int]]]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, reached = Path(name), 0
        for back, steps in attempts:
            records, reached = records_of(folder, dataset), max(0, reached - back)
            assert_agrees(summarised(records), folder)  # before the first step nothing is superseded yet
            for seconds, samples in steps:
                reached += 1
                records.step(step(reached, seconds, samples))
                if reached % 5 == 0:
                    records.epoch(epoch(reached // 5, seconds / 1e4))
            assert_agrees(summarised(records), folder)
            ended = summarised(records, "stopped")
            assert (ended["throughput"], ended["accuracy"]) == read_again(folder)  # to the bit
            records.close()


def assert_agrees(summary: dict[str, Any], folder: Path) -> None:
    expected, rated = read_again(folder)
    found = summary["throughput"]
    assert summary["accuracy"] == rated
    if expected["step_seconds"] is None:
        assert found == expected
        return
    for name in ("samples_per_second", "steps_per_second"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)
    assert found["step_seconds"]["mean"] == pytest.approx(expected["step_seconds"]["mean"], rel=1e-9)
    for name in ("p50", "p95"):
        assert found["step_seconds"][name] == pytest.approx(expected["step_seconds"][name], rel=0.0051)


def test_a_summary_of_a_running_run_reads_no_table(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read again at every epoch, 90 epochs of 5,000 steps were 20 million rows."""
    records = records_of(tmp_path / "run", dataset)
    read: list[Path] = []
    for name in ("read_table", "read_steps"):
        whole = getattr(recording, name, read_table)
        monkeypatch.setattr(recording, name, lambda path, whole=whole: read.append(path) or whole(path), raising=False)
    for number in range(1, 4):
        records.step(step(number, 0.1))
        records.epoch(epoch(number, 0.5))
        summarised(records)
    assert read == []
    assert summarised(records, "completed")["throughput"]["step_seconds"]["p95"] == pytest.approx(0.1)
    records.close()


class Id(int):
    """Counts how often anybody looks it up."""

    looked_up: ClassVar[int] = 0

    def __hash__(self) -> int:
        Id.looked_up += 1
        return int.__hash__(self)


def test_unusable_samples_are_looked_at_once(tmp_path: Path, dataset: Dataset) -> None:
    records, failures = records_of(tmp_path / "run", dataset), {}
    for number in range(20):
        failures[Id(number)] = Failure(number, f"{number}.jpg", "torn")
        records.quarantine("train", failures)
    Id.looked_up = 0
    for _ in range(100):  # steps that meet no other
        records.quarantine("train", failures)
    assert Id.looked_up == 0
    records.quarantine("val", {3: Failure(3, "3.jpg", "torn")})
    written = [(row["split"], int(row["sample_id"])) for row in read_table(tmp_path / "run" / "quarantine.csv")]
    assert written == [*(("train", number) for number in range(20)), ("val", 3)]
    records.close()


@pytest.mark.parametrize(
    "text", ["split,name\ntrain,a.jpg\n", "split,sample_id\ntrain,x\n", "\ufeffsplit,sample_id\ntrain,1\n"]
)
def test_a_damaged_quarantine_is_refused_when_a_run_goes_on(tmp_path: Path, dataset: Dataset, text: str) -> None:
    (tmp_path / "quarantine.csv").write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match=r"quarantine.csv: row 1 is .*, expected a split and a number"):
        records_of(tmp_path, dataset)
