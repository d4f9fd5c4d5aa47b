"""Decoded samples in memory or on disk: bounded, exact, found again, and never someone else's."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_disk import SmallDisk, small_disk  # noqa: F401

from flatout.cache import arena as arena_module
from flatout.cache.arena import Arena, disk_arena, memory_arena
from flatout.errors import NoSpace


def pixels(row: int, height: int = 4, width: int = 5) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, (height, width, 3), np.uint8)


def get(arena: Arena, rows: np.ndarray) -> tuple[list[memoryview], np.ndarray]:
    offsets, lengths, shapes = arena.find(rows)
    return [arena.pixels[low : low + count] for low, count in zip(offsets, lengths, strict=True)], shapes


def got(arena: Arena, row: int) -> np.ndarray | None:
    (data,), (shape,) = get(arena, np.array([row]))
    return np.frombuffer(data, np.uint8).reshape(*shape, 3) if shape[0] else None


@pytest.fixture(params=["memory", "disk"])
def make_arena(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int, int], Arena]:
    if request.param == "memory":
        return memory_arena
    return lambda rows, capacity: disk_arena(tmp_path / "arena", rows, capacity)


def test_gives_back_what_was_put(make_arena: Callable[[int, int], Arena]) -> None:
    arena = make_arena(10, 10_000)
    assert arena.put(3, pixels(3))
    assert arena.put(0, pixels(0, 1, 7).transpose(1, 0, 2))  # not contiguous
    assert np.array_equal(got(arena, 3), pixels(3))
    assert np.array_equal(got(arena, 0), pixels(0, 1, 7).transpose(1, 0, 2))
    assert got(arena, 1) is None
    views, shapes = get(arena, np.array([1, 3, 9, 0]))
    assert shapes.tolist() == [[0, 0], [4, 5], [0, 0], [7, 1]]
    assert [len(view) for view in views] == [0, 60, 0, 21]


def test_a_row_is_kept_once(make_arena: Callable[[int, int], Arena]) -> None:
    arena = make_arena(4, 10_000)
    assert arena.put(2, pixels(2))
    assert not arena.put(2, pixels(3))
    assert np.array_equal(got(arena, 2), pixels(2))
    assert arena.used_bytes == 60


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(0, 400),
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30),
)
def test_never_holds_more_than_its_capacity(capacity: int, sizes: list[tuple[int, int]]) -> None:
    arena = memory_arena(len(sizes), capacity)
    put = [arena.put(row, pixels(row, *size)) for row, size in enumerate(sizes)]
    assert arena.used_bytes == sum(3 * h * w for (h, w), there in zip(sizes, put, strict=True) if there) <= capacity
    for row, (size, there) in enumerate(zip(sizes, put, strict=True)):
        found = got(arena, row)
        assert np.array_equal(found, pixels(row, *size)) if there else found is None


def test_what_does_not_fit_does_not_keep_smaller_ones_out(make_arena: Callable[[int, int], Arena]) -> None:
    arena = make_arena(3, 100)
    assert arena.put(0, pixels(0))
    assert not arena.put(1, pixels(1))
    assert arena.put(2, pixels(2, 2, 2))
    assert np.array_equal(got(arena, 2), pixels(2, 2, 2))


def test_threads_see_a_row_whole_or_not_at_all(make_arena: Callable[[int, int], Arena]) -> None:
    rows, expected = 300, {row: pixels(row, 3 + row % 5, 3 + row % 7) for row in range(300)}
    arena = make_arena(rows, sum(each.nbytes for each in expected.values()))  # no room for a row twice
    wrong: list[int] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(rows)
        start.wait()
        for row in order.tolist():
            arena.put(row, expected[row])
            views, shapes = get(arena, order)
            for seen, view, shape in zip(order.tolist(), views, shapes, strict=True):
                if shape[0] and bytes(view) != expected[seen].tobytes():
                    wrong.append(seen)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(np.array_equal(got(arena, row), expected[row]) for row in range(rows))


def test_a_disk_arena_is_found_again(tmp_path: Path) -> None:
    first = disk_arena(tmp_path, 8, 1000)
    first.put(5, pixels(5))
    first.close()
    again = disk_arena(tmp_path, 8, 1000)
    assert np.array_equal(got(again, 5), pixels(5))
    assert again.used_bytes == 60
    assert again.put(6, pixels(6))
    assert np.array_equal(got(again, 5), pixels(5))


def filled(folder: Path, rows: int = 8, capacity: int = 1000) -> None:
    arena = disk_arena(folder, rows, capacity)
    for row in range(rows):
        arena.put(row, pixels(row, 2, 3))
    arena.close()


def test_contents_of_another_boot_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(arena_module, "_boot_id", lambda: "another boot")
    arena = disk_arena(tmp_path, 8, 1000)
    assert arena.used_bytes == 0
    assert got(arena, 0) is None


def test_contents_of_another_layout_are_dropped(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "boot").write_text(arena_module._boot_id())  # as before there were planes
    assert disk_arena(tmp_path, 8, 1000).used_bytes == 0


@pytest.mark.parametrize("capacity", [1001, 5000])
def test_a_larger_arena_starts_anew_instead_of_showing_black(tmp_path: Path, capacity: int) -> None:
    filled(tmp_path)
    for _ in range(2):  # and what it then holds is found by the one after it
        arena = disk_arena(tmp_path, 8, capacity)
        found = got(arena, 1)
        assert found is None or np.array_equal(found, pixels(1, 2, 3))
        arena.put(1, pixels(1, 2, 3))
        arena.close()
    assert np.array_equal(got(disk_arena(tmp_path, 8, capacity), 1), pixels(1, 2, 3))


def test_a_smaller_budget_keeps_what_is_there(tmp_path: Path) -> None:
    filled(tmp_path)
    arena = disk_arena(tmp_path, 8, 10)
    assert np.array_equal(got(arena, 7), pixels(7, 2, 3))


@pytest.mark.parametrize("rows", [7, 9])
def test_another_number_of_rows_starts_anew(tmp_path: Path, rows: int) -> None:
    filled(tmp_path)
    arena = disk_arena(tmp_path, rows, 1000)
    assert arena.used_bytes == 0


@pytest.mark.parametrize("lost", ["pixels", "index", "boot"])
def test_half_an_arena_is_none(tmp_path: Path, lost: str) -> None:
    filled(tmp_path)
    (tmp_path / lost).unlink()
    arena = disk_arena(tmp_path, 8, 1000)
    assert all(got(arena, row) is None for row in range(8))


def test_more_than_the_disk_has_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoSpace, match=r"no room for a disk cache of .*; free some space, or set data\.cache=off"):
        disk_arena(tmp_path / "arena", 8, 2**55)
    assert [path.name for path in (tmp_path / "arena").iterdir()] == ["lock"]
    assert disk_arena(tmp_path / "arena", 8, 100).capacity_bytes >= 100  # the lock is free again


def test_a_small_disk_is_found_out_before_anything_is_written(small_disk: SmallDisk) -> None:  # noqa: F811
    disk = small_disk("2m")
    with pytest.raises(NoSpace, match="No space left"):
        disk_arena(disk / "arena", 8, 4_000_000)
    arena = disk_arena(disk / "arena", 8, 1_000_000)
    assert arena.put(0, pixels(0, 500, 600))
    (disk / "other").write_bytes(bytes(200_000))
    with pytest.raises(OSError, match="No space left"):
        (disk / "more").write_bytes(bytes(2_000_000))
    assert arena.put(1, pixels(1, 100, 100))  # its room was taken at the start: no SIGBUS
    assert np.array_equal(got(arena, 1), pixels(1, 100, 100))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NoSpace, match="Not a directory"):
        disk_arena(tmp_path / "file" / "arena", 8, 100)


def test_what_a_killed_process_was_writing_is_written_again(tmp_path: Path) -> None:
    arena = disk_arena(tmp_path, 4, 1000)
    assert arena.put(0, pixels(0))
    arena.shared[1][2, 0] = -1  # claimed, as by native/arena.c, and never finished
    assert got(arena, 2) is None
    assert not arena.put(2, pixels(2))
    arena.close()
    again = disk_arena(tmp_path, 4, 1000)
    assert np.array_equal(got(again, 0), pixels(0))
    assert again.put(2, pixels(2))
    assert np.array_equal(got(again, 2), pixels(2))


def test_no_bytes_at_all_is_a_cache_that_holds_nothing(make_arena: Callable[[int, int], Arena]) -> None:
    arena = make_arena(2, 0)
    assert not arena.put(0, pixels(0, 1, 1))
    assert got(arena, 0) is None


def test_one_user_at_a_time(tmp_path: Path) -> None:
    arena = disk_arena(tmp_path, 2, 100)
    with pytest.raises(NoSpace, match="in use by another run"):
        disk_arena(tmp_path, 2, 100)
    attempt = (
        f"from pathlib import Path; from flatout.cache.arena import *; disk_arena(Path({str(tmp_path)!r}), 2, 100)"
    )
    other = subprocess.run([sys.executable, "-c", attempt], capture_output=True, text=True, check=False)
    assert "in use by another run" in other.stderr
    arena.close()
    disk_arena(tmp_path, 2, 100).close()


def test_what_a_killed_process_had_put_is_still_there(tmp_path: Path) -> None:
    script = f"""
import os, signal, numpy as np
from pathlib import Path
from flatout.cache.arena import disk_arena
arena = disk_arena(Path({str(tmp_path)!r}), 100, 100_000)
for row in range(60):
    arena.put(row, np.full((3, 4, 3), row, np.uint8))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    arena = disk_arena(tmp_path, 100, 100_000)
    assert all(np.array_equal(got(arena, row), np.full((3, 4, 3), row)) for row in range(60))
    assert got(arena, 60) is None
