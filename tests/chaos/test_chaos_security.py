"""Rules of docs/faults.md that only real processes can prove: who listens where, what a recipe may do, what is warned of."""

import shutil
import sys
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
import yaml

from flatout.commands.dashboard import Board
from flatout.commands.dashboard_run import WatchedRuns
from namespaces import island, why_not
from ranks import free_port
from training import DEADLINE_SECONDS, command, row_count, start, summary, wait_until, write_recipe

FLATOUT = str(Path(sys.executable).with_name("flatout"))
RANKS = {"parallel__mode": "ddp", "parallel__devices": 2, "parallel__preflight": False, "data__batch_size": 4}


def listening(process: psutil.Process) -> set[str]:
    """The addresses at which a process takes connections over IP."""
    return {each.laddr.ip for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("launched", [True, False], ids=["launcher", "ranks"])
def test_ranks_and_their_service_listen_on_loopback_only(
    launched: bool, work: Path, shapes: Path, tmp_path: Path
) -> None:
    """The store of the ranks has no authentication; the service of shared batches has a token that others cannot read."""
    config, run = write_recipe(work / "tiny.yaml", shapes, **RANKS, data__shared="auto"), work / "runs" / "tiny"
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    places = [{}] if launched else [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [
        start("train", config, cwd=work, environment={**place, "XDG_RUNTIME_DIR": str(tmp_path)}) for place in places
    ]
    try:
        wait_until(lambda: row_count(run) >= 3 or not started[0].running, "steps")
        first = psutil.Process(started[0].pid)
        assert listening(first), "the store"
        tree = [process for each in started for process in (psutil.Process(each.pid), *each.children())]
        tree = [each for each in tree if each.status() != psutil.STATUS_ZOMBIE]  # a service that found another one
        service = [each for each in tree if "flatout.service.transport.daemon" in each.cmdline()]
        assert service
        assert not service[0].net_connections("inet"), "it holds no connection of the rank that started it"
        assert all(ip_address(address).is_loopback for each in tree for address in listening(each))
        assert (tmp_path / "flatout/shared.token").stat().st_mode & 0o777 == 0o600
    finally:
        for each in started:
            each.send(15)
        ended = [each.wait() for each in started]
    assert summary(run)["status"] in ("stopped", "completed"), ended[0].err


@pytest.mark.parametrize("words", [("train",), ("config", "show")])
def test_a_recipe_builds_no_objects(words: tuple[str, ...], work: Path) -> None:
    config, made = work / "evil.yaml", work / "made"
    config.write_text(f"name: !!python/object/apply:os.mkdir ['{made}']\n")
    refused = command(*words, config, cwd=work)
    assert refused.code == 2
    assert len(refused.err.strip().splitlines()) == 1
    assert not made.exists()
    assert not (work / "runs").exists()


@pytest.mark.skipif(why_not() is not None, reason="needs network namespaces")
def test_a_store_at_a_public_address_is_warned_of(work: Path, shapes: Path) -> None:
    """Two ranks that meet at an address of the internet, in a namespace in which that address is ours."""
    config, run = write_recipe(work / "tiny.yaml", shapes, **RANKS, train__max_steps=2), work / "runs" / "tiny"
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "8.8.8.8", "MASTER_PORT": "29500"}
    with island("8.8.8.8/32") as place:
        ranks = [
            place.start(FLATOUT, "train", config, cwd=work, **shared, RANK=str(rank), LOCAL_RANK=str(rank))
            for rank in range(2)
        ]
        codes = [rank.wait(DEADLINE_SECONDS) for rank in ranks]
    said = (work / "said.txt").read_text()
    assert codes == [0, 0], said
    assert said.count("WARNING: the ranks meet at 8.8.8.8:29500, a public address") == 1
    assert summary(run)["world_size"] == 2


def test_looking_at_a_run_loads_no_code_that_it_names(work: Path, uninterrupted: Path) -> None:
    """Its directory may come from anywhere; only those commands that build its model run what it names."""
    for name in ("theirs", "whole"):
        shutil.copytree(uninterrupted, work / name, symlinks=True)
    (work / "evil.py").write_text(f"open({str(work / 'made')!r}, 'w')\ndef X(*a, **k): raise SystemExit\n")
    named = yaml.safe_load((work / "theirs/config.yaml").read_text())
    named |= {"model": {"name": "./evil.py:X"}, "trackers": ["./evil.py:X"], "validate": {"metrics": ["./evil.py:X"]}}
    named["data"] |= {"layout": "./evil.py:X"}
    named["train"] |= {"loss": "./evil.py:X", "optimizer": "./evil.py:X", "schedule": "./evil.py:X"}
    (work / "theirs/config.yaml").write_text(yaml.safe_dump(named))
    looking = (
        "runs .",
        "report theirs",
        "explain theirs",
        "compare theirs whole",
        "predict theirs --if data.workers=2",
    )
    for words in (*looking, "config show theirs/config.yaml"):
        command(*words.split(), cwd=work)
        assert not (work / "made").exists(), words
    watched = WatchedRuns(Board([work]))
    watched.board.rows()
    for _ in range(2):
        assert "theirs" in "".join(watched.fragments("0/theirs")[0].values())
    assert not (work / "made").exists()
    assert command("evaluate", "theirs", cwd=work).code == 2
    assert (work / "made").exists(), "the canary is one"
