"""Curves of a growing steps.csv are exactly its lowest and highest values, whatever way it grew."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import BadFile
from flatout.runs import following
from flatout.runs.following import StepFollower, read_recent, read_tail, read_thinned
from flatout.runs.tables import Table

HEADER = "attempt,step,epoch,samples,samples_digest,loss,learning_rate,step_seconds,data_wait_seconds,time_unix\r\n"


def row(step: int, loss: float | str, attempt: int = 1) -> str:
    return f"{attempt},{step},0,8,ab,{loss},0.1,0.5,0.1,{1000 + step}\r\n"


def extent(follower: StepFollower) -> tuple[float, float, float]:
    steps, _, low, high = follower.curves.points("loss")
    return steps[-1], min(x for x in low if not math.isnan(x)), max(x for x in high if not math.isnan(x))


@settings(max_examples=40, deadline=None)
@given(
    losses=st.lists(st.floats(0, 100), min_size=1, max_size=400),
    cuts=st.lists(st.integers(0, 20_000), max_size=6),
    most=st.integers(4, 64),
)
def test_nothing_is_lost_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], cuts: list[int], most: int
) -> None:
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    text = HEADER + "".join(row(n, loss) for n, loss in enumerate(losses, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_MOST_STRETCHES", most)
        follower = StepFollower(path)
        for cut in sorted(min(cut, len(text)) for cut in [*cuts, len(text)]):
            path.write_text(text[:cut], newline="")
            follower.advance()
        steps, _, low, _ = follower.curves.points("loss")
        assert extent(follower) == (len(losses), min(losses), max(losses))
        assert len(steps) <= most + 1
        assert list(steps) == sorted(steps)
        assert len(low) == len(steps)
        assert follower.recent()[-1][0] == len(losses)


def test_a_later_attempt_replaces_what_it_did_again(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(HEADER + "".join(row(n, 99 if n > 5 else 1) for n in range(1, 11)), newline="")
    follower = StepFollower(path)
    follower.advance()
    assert extent(follower) == (10, 1, 99)
    with path.open("a", newline="") as file:
        file.write("".join(row(n, 2, attempt=2) for n in range(6, 9)))
    follower.advance()
    assert extent(follower) == (8, 1, 2)
    assert [int(each) for each in follower.recent()[:, 0]] == list(range(1, 9))


def test_a_file_that_was_replaced_or_deleted_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(HEADER + row(1, 5.0) + row(2, 6.0), newline="")
    follower = StepFollower(path)
    follower.advance()
    path.unlink()
    assert follower.advance() is False
    assert len(follower.curves.points("loss")[0]) == 0
    path.write_text(HEADER + row(1, 7.0), newline="")
    follower.advance()
    assert extent(follower) == (1, 7, 7)


def test_blanks_are_gaps_and_a_loss_that_is_no_number_is_infinite(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    damaged = "1,what,0,8\r\n1,x,0,8,ab,1,1,1,1,1\r\n"
    path.write_text(HEADER + row(1, "") + damaged + row(2, 3.0) + row(3, "nan"), newline="")
    follower = StepFollower(path)
    follower.advance()
    _, _, low, high = follower.curves.points("loss")
    assert math.isnan(low[0])
    assert low[1] == 3.0
    assert math.isinf(high[2])


def test_a_long_file_is_shown_at_once_from_a_sample_and_then_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SKETCH_BYTES", 50_000)
    monkeypatch.setattr(following, "_SKETCH_ROWS", 64)
    monkeypatch.setattr(following, "_CHUNK_BYTES", 4096)
    path = tmp_path / "steps.csv"
    path.write_text(HEADER + "".join(row(n, 50 if n == 1234 else n % 7) for n in range(1, 4001)), newline="")
    follower = StepFollower(path)
    follower.advance(4096)
    assert follower.is_sampled
    assert extent(follower)[0] == 4000
    assert follower.recent()[-1][0] == 4000
    while follower.is_sampled:
        assert follower.recent()[-1][0] == 4000
        follower.advance(40_960)
    assert extent(follower) == (4000, 0, 50)


def test_the_end_of_a_text_and_a_thinned_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert read_tail(log, 30).splitlines()[-1] == "line 999"
    assert read_tail(log, 30).splitlines()[0].startswith("line ")
    assert read_tail(tmp_path / "none") == ""
    table = tmp_path / "system.csv"
    table.write_text("a,b\r\n" + "".join(f"{n},{n}\r\n" for n in range(1000)))
    thinned = read_thinned(table, 100)
    assert len(thinned) <= 100
    assert thinned[-1] == {"a": "999", "b": "999"}
    monkeypatch.setattr(following, "_SKETCH_BYTES", 1000)
    monkeypatch.setattr(following, "_CHUNK_BYTES", 100)
    sampled = read_thinned(table, 50)
    assert 50 <= len(sampled) < 80
    assert sampled[-1] == {"a": "999", "b": "999"}


def test_a_directory_instead_of_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").mkdir()
    with pytest.raises(BadFile, match="is a directory"):
        StepFollower(tmp_path / "steps.csv").advance()


def test_the_last_steps_of_a_long_file_are_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    assert len(read_recent(path)) == 0
    path.write_text(HEADER + "".join(row(n, n) for n in range(1, 5000)) + row(4990, 7, attempt=2) + "2,4991,0,8,a")
    follower = StepFollower(path)
    while follower.advance():
        pass
    assert read_recent(path)[:, 0].tolist() == [4990.0]  # of the last attempt
    assert read_recent(path)[-1].tolist() == follower.recent()[-1].tolist()


def test_a_cell_without_end_is_left_out(tmp_path: Path) -> None:
    path, long = tmp_path / "steps.csv", "9" * 140_000
    path.write_text(f"attempt,step,loss\n1,1,0.5\n1,2,{long}\n")
    follower = StepFollower(path)
    follower.advance()
    assert follower.recent()[:, 0].tolist() == [1.0]
    path.write_text(f"attempt,step,{long}\n1,1,0.5\n")
    assert not len(read_recent(path))
    table = Table(path, ("attempt", "step"))
    with pytest.raises(BadFile, match=r"cannot read .*steps.csv: field larger than field limit"):
        table.append({"attempt": 1, "step": 2})
