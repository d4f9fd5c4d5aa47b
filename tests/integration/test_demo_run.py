"""`flatout demo`, end to end, as a newcomer types it."""

import json
from pathlib import Path

import pytest

from flatout.timeline import PARTS
from training import Finished, command, expected_ledger, installed_command, summary, trained

SUMMARY_KEYS = {
    "device": {"name", "emulated", "count"},
    "accuracy": {"top1", "top5", "val_loss", "train_loss", "best_epoch"},
    "convergence": {"verdict", "why"},
    "throughput": {"samples_per_second", "steps_per_second", "step_seconds"},
    "time": {"wall_seconds", "parts"},
    "data": {
        "samples_total", "dataset_bytes", "bytes_read", "fetch_seconds", "decode_seconds", "augment_seconds",
        "cache_hits", "cache_misses", "quarantined",
    },
    "device_use": {"busy_fraction", "utilization_mean", "memory_peak_bytes", "power_watts_mean"},
    "network": {"bytes_sent", "bytes_received", "peak_bits_per_second", "link_bits_per_second"},
    "checkpoint": {"files", "bytes", "seconds"},
    "cost": {"total_usd", "lines", "prices_dated"},
}  # fmt: skip
PLAIN_KEYS = {
    "run", "status", "cause", "world_size", "config_digest", "data_fingerprint", "state_digest", "attempts",
    "samples_seen",
}  # fmt: skip
STEP_COLUMNS = [
    "attempt", "step", "epoch", "batch_index", "samples", "samples_digest", "loss", "learning_rate", "step_seconds",
    "data_wait_seconds", "time_unix", "cpu_seconds",
]  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    folder = tmp_path_factory.mktemp("demo")
    finished = installed_command("demo", cwd=folder, environment={"XDG_CACHE_HOME": str(folder / "cache")})
    return folder, finished


@pytest.mark.slow
def test_completes_and_learns(demo: tuple[Path, Finished]) -> None:
    folder, finished = demo
    assert finished.code == 0, finished.err
    values = summary(folder / "runs" / "demo")
    assert (values["status"], values["cause"]) == ("completed", None)
    assert values["accuracy"]["top1"] >= 0.9
    assert "completed" in finished.out
    assert "where the time went" in finished.out
    assert "flatout report runs/demo" in finished.out
    assert list((folder / "cache" / "flatout").iterdir())
    assert [row[:5] for row in trained(folder / "runs" / "demo")] == expected_ledger(1200, 64, 6)


@pytest.mark.slow
def test_the_summary_has_every_field(demo: tuple[Path, Finished]) -> None:
    values = summary(demo[0] / "runs" / "demo")
    assert values.keys() >= PLAIN_KEYS | SUMMARY_KEYS.keys()
    for key, names in SUMMARY_KEYS.items():
        assert values[key].keys() >= names, key
    assert set(values["time"]["parts"]) == set(PARTS)
    assert values["throughput"]["step_seconds"].keys() >= {"mean", "p50", "p95"}
    assert all(values["device_use"][name] not in (0, 100) for name in SUMMARY_KEYS["device_use"])
    assert values["samples_seen"] == 6 * 1200
    assert values["data"]["bytes_read"] > 0


@pytest.mark.slow
def test_every_second_has_an_owner(demo: tuple[Path, Finished]) -> None:
    time = summary(demo[0] / "runs" / "demo")["time"]
    wall, parts = time["wall_seconds"], time["parts"]
    assert sum(parts.values()) == pytest.approx(wall, rel=1e-3)
    assert all(seconds >= 0 for seconds in parts.values())
    if wall >= 30:
        assert parts["unattributed"] < 0.02 * wall


@pytest.mark.slow
def test_the_files_of_a_run(demo: tuple[Path, Finished]) -> None:
    run = demo[0] / "runs" / "demo"
    for name in ("config.yaml", "env.json", "steps.csv", "epochs.csv", "summary.json", "log.txt", "spans/rank0.jsonl"):
        assert (run / name).is_file(), name
    assert (run / "steps.csv").read_text().splitlines()[0].split(",")[: len(STEP_COLUMNS)] == STEP_COLUMNS
    assert list((run / "checkpoints").glob("step-*.safetensors"))
    assert (run / "checkpoints" / "best.safetensors").exists()
    assert (run / "checkpoints" / "last.safetensors").exists()
    assert not list(run.rglob("*.tmp"))
    assert json.loads((run / "env.json").read_text())["flatout"]


@pytest.mark.slow
def test_looking_at_it_afterwards(demo: tuple[Path, Finished]) -> None:
    folder, _ = demo
    run = folder / "runs" / "demo"
    assert "completed" in command("runs", cwd=folder).out
    assert json.loads(command("runs", "--json", cwd=folder).out)[0]["state_digest"] == summary(run)["state_digest"]
    told = json.loads(command("report", run, "--json", cwd=folder).out)
    assert summary(run).items() <= told.items()
    assert told["written"]["page"] == str(run / "report.html")
    assert "top-1" in command("report", run, cwd=folder).out
