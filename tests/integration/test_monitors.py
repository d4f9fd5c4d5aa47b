"""system.csv of real runs: whole after a kill -9, over all attempts, and never in the way."""

from pathlib import Path

from flatout.runs.tables import read_table
from training import STEPS, command, row_count, start, summary, wait_until, write_recipe


def rows(run: Path) -> list[dict[str, str]]:
    return read_table(run / "system.csv")


def test_a_killed_and_resumed_run_has_the_rows_of_both_attempts(shapes: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, monitor={"interval_seconds": 0.1, "interface": "lo"})
    run = work / "runs" / "tiny"
    running = start("train", config, cwd=work)
    wait_until(lambda: (row_count(run) >= 4 and len(rows(run)) >= 3) or not running.running, "three rows")
    running.kill()
    left = rows(run)
    assert len(left) >= 3
    assert command("train", config, cwd=work).code == 0
    every = rows(run)
    assert every[: len(left)] == left
    assert {row["attempt"] for row in every} == {"1", "2"}
    assert every[0]["interval_seconds"] == ""
    used = [float(row["cpu"]) for row in left[1:] if row["cpu"]]  # two rows within one tick of the kernel have none
    assert used
    assert all(0 <= each <= 1 for each in used)
    host, network, use = (summary(run)[name] for name in ("host", "network", "device_use"))
    sent = [int(row["nic_lo_sent_bytes"]) for row in every if row["nic_lo_sent_bytes"]]
    assert (network["interface"], network["bytes_sent"], network["link_bits_per_second"]) == ("lo", sum(sent), None)
    assert host["rss_peak_bytes"] == max(int(row["rss_peak_bytes"]) for row in every) > 10**8
    assert use["memory_peak_bytes"] == host["rss_peak_bytes"]
    assert use["memory_peak_of"] == "process tree"
    assert use["utilization_mean"] is None
    assert host["process_cores_mean"] > 0


def test_monitors_can_be_off_and_a_wrong_interface_is_refused(shapes: Path, work: Path) -> None:
    config = write_recipe(work / "tiny.yaml", shapes, train__epochs=1)
    wrong = command("train", config, "--set", "monitor.interface=eht7", cwd=work)
    assert wrong.code == 2
    assert "monitor.interface is 'eht7' but this machine has" in wrong.error_line
    unused = command(
        "train", config, "--set", "monitor.interval_seconds=null", "--set", "monitor.interface=lo", cwd=work
    )
    assert unused.code == 2
    assert "monitor.interface is 'lo' but nothing uses it" in unused.error_line
    assert command("train", config, "--set", "monitor.interval_seconds=null", cwd=work).code == 0
    run = work / "runs" / "tiny"
    assert row_count(run) == STEPS // 2
    assert not (run / "system.csv").exists()
    assert summary(run)["host"]["cpu_mean"] is None
