"""Original bytes on local disk: whatever happens to the process or the disk, a row is exact or not there."""

import errno
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_disk import SmallDisk, small_disk  # noqa: F401

from flatout.cache.sample_log import SampleLog
from flatout.errors import NoSpace

RECORD_BYTES = 48


def blob(row: int) -> bytes:
    return random.Random(row).randbytes(50 + row % 100)


def filled(folder: Path, rows: int) -> None:
    log = SampleLog(folder).open()
    assert all(log.put(row, blob(row)) for row in range(rows))
    log.close()


def reopened(folder: Path, rows: int) -> tuple[SampleLog, list[int]]:
    """The log, and the rows it still has; each of them must be exact."""
    log = SampleLog(folder).open()
    there = []
    for row in range(rows):
        found = log.get(row)
        assert found is None or found == blob(row)
        there += [row] if found is not None else []
    return log, there


def test_gives_back_what_was_put(tmp_path: Path) -> None:
    log = SampleLog(tmp_path).open()
    assert log.put(7, blob(7))
    assert log.put(2**40, memoryview(b"far"))
    assert log.put(8, b"")
    assert not log.put(7, b"again")
    assert (log.get(7), log.get(2**40), log.get(8), log.get(9)) == (blob(7), b"far", b"", None)
    assert len(log) == 3
    assert log.full is None


def test_is_found_again_and_goes_on(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    log, there = reopened(tmp_path, 10)
    assert there == list(range(10))
    assert log.put(10, blob(10))
    log.close()
    log, there = reopened(tmp_path, 11)
    assert there == list(range(11))
    log.close()


def test_after_closing_it_has_nothing_and_takes_nothing(tmp_path: Path) -> None:
    log = SampleLog(tmp_path).open()
    log.put(0, blob(0))
    log.close()
    log.close()
    assert log.get(0) is None
    assert not log.put(1, blob(1))


def test_a_journal_torn_anywhere_loses_only_its_end(tmp_path: Path) -> None:
    filled(tmp_path, 6)
    journal = (tmp_path / "journal").read_bytes()
    for cut in range(len(journal) + 1):
        (tmp_path / "journal").write_bytes(journal[:cut])
        log, there = reopened(tmp_path, 6)
        assert there == list(range(cut // RECORD_BYTES))
        for row in range(6):  # what was lost is written again, behind what is there
            assert log.put(row, blob(row)) == (row not in there)
        log.close()
        log, there = reopened(tmp_path, 6)
        assert there == list(range(6))
        log.close()


def test_data_cut_anywhere_gives_no_short_sample(tmp_path: Path) -> None:
    filled(tmp_path, 6)
    data, journal = ((tmp_path / name).read_bytes() for name in ("data", "journal"))
    ends = [sum(len(blob(row)) for row in range(last + 1)) for last in range(6)]
    for cut in range(0, len(data) + 1, 7):
        (tmp_path / "data").write_bytes(data[:cut])
        (tmp_path / "journal").write_bytes(journal)
        log, there = reopened(tmp_path, 6)
        assert there == [row for row in range(6) if ends[row] <= cut]
        log.close()


@pytest.mark.parametrize("name", ["data", "journal"])
def test_a_flipped_bit_costs_samples_but_never_falsifies_one(tmp_path: Path, name: str) -> None:
    filled(tmp_path, 6)
    data, journal = ((tmp_path / file).read_bytes() for file in ("data", "journal"))
    whole = {"data": data, "journal": journal}[name]
    lost = 0
    for bit in range(0, 8 * len(whole), 13):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "data").write_bytes(damaged if name == "data" else data)
        (tmp_path / "journal").write_bytes(damaged if name == "journal" else journal)
        log, there = reopened(tmp_path, 6)
        lost += 6 - len(there)
        for row in {*range(6)} - {*there}:
            assert log.put(row, blob(row))
            assert log.get(row) == blob(row)
        log.close()
    assert lost > 0


def test_a_bad_checksum_is_none_once_and_then_the_new_bytes(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with (tmp_path / "data").open("r+b") as file:
        file.write(b"\xff" if blob(0)[:1] != b"\xff" else b"\x00")
    log = SampleLog(tmp_path).open()
    assert log.get(0) is None
    assert log.put(0, blob(0))
    assert [log.get(row) for row in range(3)] == [blob(row) for row in range(3)]
    log.close()
    log, there = reopened(tmp_path, 3)
    assert there == [0, 1, 2]
    log.close()


def test_threads_that_find_the_same_damage_all_get_none(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    (tmp_path / "data").write_bytes(bytes((tmp_path / "data").stat().st_size))
    log = SampleLog(tmp_path).open()
    failures: list[object] = []
    start = threading.Barrier(8)

    def read_all() -> None:
        start.wait()
        for row in range(200):
            try:
                if log.get(row) is not None:
                    failures.append(row)
            except Exception as error:
                failures.append(error)

    run_threads([threading.Thread(target=read_all) for _ in range(8)])
    assert failures == []


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_write_and_read_at_once(tmp_path: Path) -> None:
    log = SampleLog(tmp_path).open()
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = list(range(400))
        random.Random(seed).shuffle(order)
        for row in order:
            log.put(row, blob(row))
            found = log.get(order[row])
            if log.get(row) != blob(row) or (found is not None and found != blob(order[row])):
                wrong.append(row)

    run_threads([threading.Thread(target=work, args=(seed,)) for seed in range(6)])
    assert wrong == []
    log.close()
    log, there = reopened(tmp_path, 400)
    assert there == list(range(400))
    log.close()


KILLED = """
import os, random, signal, sys
from pathlib import Path
from flatout.cache import sample_log
from flatout.cache.sample_log import SampleLog

def blob(row):
    return random.Random(row).randbytes(50 + row % 100)

where, after = sys.argv[2], int(sys.argv[3])
pwrite, write, calls = os.pwrite, os.write, 0

def dying(real):
    def call(fd, data, *rest):
        global calls
        calls += 1
        if calls > after:
            real(fd, bytes(data)[: len(data) // 2], *rest)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(fd, data, *rest)
    return call

if where == "data":
    sample_log.os.pwrite = dying(pwrite)
else:
    sample_log.os.write = dying(write)
log = SampleLog(Path(sys.argv[1])).open()
for row in range(1000):
    log.put(row, blob(row))
"""


@pytest.mark.parametrize("where", ["data", "journal"])
@pytest.mark.parametrize("after", [0, 1, 37])
def test_killed_in_the_middle_of_a_write(tmp_path: Path, where: str, after: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), where, str(after)], check=False)
    assert done.returncode == -9
    log, there = reopened(tmp_path, 1000)
    assert there == list(range(after))
    assert all(log.put(row, blob(row)) for row in range(after, 100))
    log.close()
    log, there = reopened(tmp_path, 100)
    assert there == list(range(100))
    log.close()


def test_a_full_disk_is_said_and_what_is_there_stays(small_disk: SmallDisk) -> None:  # noqa: F811
    disk = small_disk("1m")
    log = SampleLog(disk / "log").open()
    put = [log.put(row, random.Random(row).randbytes(50_000)) for row in range(30)]
    kept = put.index(False)
    assert 10 < kept < 22
    assert not any(put[kept:])
    assert log.full is not None
    assert "No space left" in log.full
    assert all(log.get(row) == random.Random(row).randbytes(50_000) for row in range(kept))
    assert log.get(kept) is None
    log.close()
    log = SampleLog(disk / "log").open()
    assert all(log.get(row) == random.Random(row).randbytes(50_000) for row in range(kept))
    assert log.get(kept) is None
    log.close()


@pytest.mark.parametrize("call", ["pwrite", "write"])
def test_a_full_disk_without_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    log = SampleLog(tmp_path).open()
    assert log.put(0, blob(0))

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"flatout.cache.sample_log.os.{call}", no_room)
        assert not log.put(1, blob(1))
    assert log.full == f"{tmp_path}: No space left on device"
    assert not log.put(2, blob(2))  # not tried again
    assert (log.get(0), log.get(1)) == (blob(0), None)
    log.close()


def test_half_a_journal_record_counts_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SampleLog(tmp_path).open()
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr("flatout.cache.sample_log.os.write", lambda fd, data: write(fd, data[:9]))
        assert not log.put(0, blob(0))
    assert log.full is not None
    log.close()
    log, there = reopened(tmp_path, 1)
    assert there == []
    assert log.put(0, blob(0))
    log.close()


def test_a_disk_that_cannot_be_read_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 1)
    log = SampleLog(tmp_path).open()

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("flatout.cache.sample_log.os.pread", failing)
        assert log.get(0) is None
    log.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    log = SampleLog(tmp_path).open()
    with pytest.raises(NoSpace, match="being filled by another run"):
        SampleLog(tmp_path).open()
    script = "import sys; from pathlib import Path; from flatout.cache.sample_log import SampleLog; "
    script += "SampleLog(Path(sys.argv[1])).open()"
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "NoSpace" in other.stderr
    assert "being filled by another run" in other.stderr
    assert log.put(0, blob(0))
    log.close()
    assert len(SampleLog(tmp_path).open()) == 1
