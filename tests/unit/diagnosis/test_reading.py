"""From a run's files to signals: what is there, what is torn, what is missing."""

import json
from pathlib import Path

import pytest

from flatout.diagnosis.machine_share import read_share
from flatout.diagnosis.reading import read_signals
from flatout.diagnosis.verdict import explain_signals
from flatout.errors import RunDirectoryError
from flatout.runs import Run, read_run

HEADER = (
    "attempt,step,epoch,batch_index,samples,samples_digest,loss,learning_rate,step_seconds,data_wait_seconds,time_unix"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("data: {path: s3://b/d, workers: 2, batch_size: 8}\ntrain: {epochs: 3}\n")
    rows = [f"1,{n + 1},{n // 4},{n % 4},8,x,1.0,0.1,0.5,0.2,{1000 + n}" for n in range(12)]
    (tmp_path / "steps.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    (tmp_path / "summary.json").write_text(json.dumps({"run": "r", "status": "completed", "samples_seen": 96}))
    return tmp_path


def write_spans(run: Path, *lines: object) -> None:
    (run / "spans").mkdir()
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (run / "spans" / "rank0.jsonl").write_text(text)


def test_steps_and_settings(run: Path) -> None:
    signals = read_signals(read_run(run))
    assert (signals.step.done, signals.input.workers, signals.input.fetchers, signals.input.remote) == (12, 2, 4, True)
    assert signals.step.wait_share == pytest.approx(0.4)


def test_what_was_not_recorded_is_none(run: Path) -> None:
    signals = read_signals(read_run(run))
    assert signals.load is None
    assert signals.input.store is None
    assert signals.ranks is None
    assert signals.cost.usd_per_hour is None
    assert signals.host.cpu_share == ()


def test_lanes_become_the_work_for_each_batch(run: Path) -> None:
    lanes = [
        {"lane": "fetcher-0", "name": "fetch", "step": 3, "start": 1.0, "seconds": 0.6},
        {"lane": "worker-0", "name": "decode", "step": 3, "start": 1.3, "seconds": 0.1},
        {"lane": "queue", "name": "depth", "start": 1.5, "value": 2},
    ]
    write_spans(run, {"attempt": 1, "started_unix": 0}, *lanes, '{"lane": "worker-0", "na')
    signals = read_signals(read_run(run))
    (load,) = signals.input.loads
    assert (load.step, load.fetch_seconds, load.decode_seconds) == (4, 0.6, 0.1)
    assert signals.fetch_bound


def test_a_later_attempt_replaces_what_an_earlier_one_said_of_a_step(run: Path) -> None:
    lane = {"lane": "worker-0", "name": "decode", "step": 3, "start": 1.0}
    write_spans(run, {"attempt": 1, "started_unix": 0}, {**lane, "seconds": 9.0},
                {"attempt": 2, "started_unix": 5}, {**lane, "seconds": 0.2})  # fmt: skip
    (load,) = read_signals(read_run(run)).input.loads
    assert load.decode_seconds == 0.2


def test_monitors(run: Path) -> None:
    (run / "system.csv").write_text(
        "time_unix,interval_seconds,cpu,process_cores,rss_bytes,disk_vda_read_bytes,disk_vda_busy\n"
        "1,,0.5,,1000,,\n3,2,0.9,1.5,2000,400,0.97\n"
    )
    system = read_signals(read_run(run)).host
    assert system.cpu_share == (0.5, 0.9)
    assert system.process_cores == (1.5,)
    assert system.resident_bytes == (1000, 2000)
    assert system.disk_read_bytes_per_second == (200,)
    assert system.disk_busy_share == (0.97,)


def test_no_run_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError):
        read_run(tmp_path)


def test_ranks_are_told_apart_by_what_they_do_themselves(run: Path) -> None:
    summary = {"run": "r", "status": "completed", "world_size": 2, "network": {"peak_bits_per_second": 97e6}}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "spans").mkdir()
    for rank, (own, waits) in enumerate([(1.2, 6.0), (6.0, 1.2)]):
        rows = [
            {"attempt": 1, "started_unix": 0},
            {"name": "backward", "start": 0.0, "seconds": own, "own": own},
            {"name": "communication", "start": own, "seconds": waits, "own": waits},
        ]
        (run / "spans" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predicted = {"gradient_bytes": 50e6, "buckets": [{"bytes": 50e6, "ready_seconds": 0.4}]}
    (run / "link.json").write_text(
        json.dumps({"bits_per_second": 97e6, "cap_bits_per_second": 1e8, "predicted": predicted})
    )
    ranks = read_signals(read_run(run)).ranks
    assert ranks is not None
    assert (ranks.cap_bits_per_second, ranks.gradient_bytes, ranks.buckets) == (1e8, 50e6, ((50e6, 0.4),))
    assert ranks.arrival_seconds == pytest.approx((0.1, 0.5))
    assert ranks.communication_seconds == pytest.approx(0.1)


def test_a_log_of_another_program_has_few_columns(run: Path) -> None:
    (run / "steps.csv").write_text("attempt,step,loss\n1,1,2.0\n1,2,1.5\n")
    signals = read_signals(read_run(run))
    assert signals.steps == ()
    assert "No verdict" in explain_signals(signals).verdict


def test_spot_prices_come_from_the_catalogue(run: Path) -> None:
    (run / "config.yaml").write_text("cost: {instance: g4dn.xlarge, count: 2}\n")
    assert read_signals(read_run(run)).cost.spot_usd_per_hour == pytest.approx(2 * 0.229)


def test_what_the_loader_decided_about_a_cache(run: Path) -> None:
    assert read_signals(read_run(run)).input.cache_choice is None
    told = {"wanted": "auto", "tier": "off", "reason": "off, never pays", "crop_seconds": 0.001, "of a newer kind": 1}
    (run / "resolved.json").write_text(json.dumps({"cache": told}))
    choice = read_signals(read_run(run)).input.cache_choice
    assert choice is not None
    assert (choice.value, choice.declined, choice.reason) == ("off", True, "off, never pays")
    (run / "resolved.json").write_text(json.dumps({"cache": ["of", "another", "kind"]}))
    assert read_signals(read_run(run)).input.cache_choice is None


def test_the_share_of_a_machine_from_words_is_as_if_nothing_were_known(tmp_path: Path) -> None:
    words = {"cpu": {"cores_usable": "<script>", "cores_total": [1]}}
    said = {"world_size": {}, "optimizer": {"groups": [{"parameters": "é"}]}, "time": {"import_seconds": "long"}}
    assert read_share(Run(tmp_path, said, {"parallel": {"nodes": "x"}}, words, [], [])).cores == 1.0
