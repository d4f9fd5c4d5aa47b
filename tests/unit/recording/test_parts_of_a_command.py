"""Parts of a recorded command add up to its wall clock, however it ended."""

from pathlib import Path

import pytest

from flatout.config.loading import load_config
from flatout.recording.summing import describe_config, whole_parts
from flatout.recording.told import RankTold

HEADER = '{"attempt": 1, "started_unix": 1002.0}\n'
SPAN = '{"name":"forward","step":1,"start":0.0,"seconds":5.0,"own":5.0}\n'


def spans(run: Path, text: str) -> Path:
    (run / "spans").mkdir()
    (run / "spans/rank0.jsonl").write_text(text)
    return run


def test_a_launchers_start_and_the_way_out_have_owners(tmp_path: Path) -> None:
    parts, after = whole_parts(spans(tmp_path, HEADER + SPAN), 0, 1000.0, 10.0, "other")
    assert (parts["startup"], parts["forward"], parts["other"], after) == (2.0, 5.0, 3.0, 3.0)
    assert sum(parts.values()) == pytest.approx(10.0)


def test_a_killed_command_went_on_with_what_it_did(tmp_path: Path) -> None:
    parts, _ = whole_parts(spans(tmp_path, HEADER + SPAN + '{"name":"torn'), 0, 1000.0, 10.0, "data_wait")
    assert parts["data_wait"] == 3.0
    assert whole_parts(tmp_path, 0, 1000.0, 10.0, "None")[0]["unattributed"] == 3.0


def test_a_command_that_never_trained_is_all_start(tmp_path: Path) -> None:
    assert whole_parts(tmp_path, 0, 1000.0, 10.0, None)[0]["startup"] == 10.0


def test_the_recipe_of_a_script_is_what_it_did() -> None:
    rank = RankTold()
    rank.add({"process": {"threads": 2, "device": {"kind": "cpu"}}})
    rank.add({"loader": {"number": 0, "num_workers": 3, "prefetch_factor": 4}})
    step = {"epoch": 1, "samples": 8, "microbatches": 2, "loss": None}
    rank.add({"step": step})
    config = describe_config("mine", {"instance": "g5.xlarge"}, [rank])
    assert config["data"] == {
        "batch_size": 8,
        "workers": 3,
        "worker_kind": "process",
        "prefetch": 12,
        "cache": "off",
        "stage": "off",
    }
    assert (config["train"], config["cost"]) == ({"epochs": 2, "accumulate": 2}, {"instance": "g5.xlarge"})
    assert describe_config("mine", {}, []) == {"name": "mine"}


@pytest.mark.parametrize("workers", [0, 3])
def test_what_a_script_says_of_itself_is_a_recipe_that_predictions_accept(workers: int) -> None:
    rank = RankTold()
    step = {"epoch": 0, "samples": 8, "microbatches": 1}
    for event in ({"loader": {"number": 0, "num_workers": workers}}, {"trained": 0}, {"step": step}):
        rank.add(event)
    assert load_config(describe_config("mine", {}, [rank])).config.data.workers == workers
