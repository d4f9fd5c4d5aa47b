"""The GPUs of all ranks in one run's records. NVML and torch.cuda are fakes of what is asked of them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout.config.loading import load_config
from flatout.engine.devices import Device
from flatout.runs import RunDirectory
from flatout.runs.tables import read_table
from flatout.training.monitoring import OwnGpu, SystemRecords

PER_CENT = {"GPU-zero": 100, "GPU-one": 50, "GPU-two": 30}
CONFIG = load_config({"device": "cuda", "monitor": {"interval_seconds": 3600}}).config


class FakeNvml(SimpleNamespace):
    """Two machines of the world: whoever asks for a UUID gets that card, and nothing is asked by number."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __getattr__(self, name: str) -> Any:
        return {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
            "nvmlDeviceGetName": lambda uuid: uuid,
            "nvmlDeviceGetUtilizationRates": lambda uuid: SimpleNamespace(gpu=PER_CENT[uuid]),
            "nvmlDeviceGetMemoryInfo": lambda uuid: SimpleNamespace(used=PER_CENT[uuid], total=1000),
        }.get(name, lambda *_: 0)


@dataclass(frozen=True)
class Card(Device):
    peak: int = 0

    def memory_peak_bytes(self) -> int | None:
        return self.peak


def card(monkeypatch: pytest.MonkeyPatch, uuid: str, peak: int) -> Device:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(uuid=uuid))
    return Card("cuda", torch.device("cuda", 0), "fake", peak)


def test_every_rank_reads_its_own_gpu_and_rank_0_writes_all_down_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    said = []
    for rank, (uuid, peak) in enumerate((("one", 10), ("two", 99)), 1):
        gpu = OwnGpu(CONFIG, card(monkeypatch, uuid, peak), rank)
        gpu.start(lambda: 5.0, said.append)
        gpu.stop()
        said.append(gpu.take())
        assert gpu.take()["rows"] == []  # each row is told once
    records = SystemRecords(RunDirectory(tmp_path), CONFIG, card(monkeypatch, "zero", 20), attempt=1)
    monkeypatch.setattr(records, "_readers", lambda readers=records._readers: {"gpu": readers()["gpu"]})
    records.start(lambda: 5.0, said.append)
    records.stop()
    for rank, each in enumerate(said, 1):
        records.add_rank(rank, each)
    sections = records.sections(None)
    records.close()
    assert [gpu["name"] for gpu in sections["host"]["gpus"]] == ["GPU-zero", "GPU-one", "GPU-two"]
    assert sections["device_use"]["memory_peak_bytes"] == 99
    rows = read_table(tmp_path / "system-ranks.csv")
    assert {(row["rank"], row[f"gpu{row['rank']}_utilization"]) for row in rows} == {("1", "0.5"), ("2", "0.3")}
    (own,) = read_table(tmp_path / "system.csv")
    assert own["gpu0_utilization"] == "1.0"
    assert "gpu1_utilization" not in own
    again = SystemRecords(RunDirectory(tmp_path), CONFIG, card(monkeypatch, "zero", 20), attempt=2)
    assert {name for name in again._totals._columns if name.endswith("_utilization")} == {
        "gpu0_utilization", "gpu1_utilization", "gpu2_utilization",
    }  # fmt: skip
    again.close()


def test_a_rank_without_a_gpu_reads_none() -> None:
    gpu = OwnGpu(CONFIG, Device("cpu", torch.device("cpu"), "cpu"), 1)
    gpu.start(lambda: 0.0, lambda text: None)
    assert gpu.take() == {"rows": [], "gpus": [], "tensors": None}
