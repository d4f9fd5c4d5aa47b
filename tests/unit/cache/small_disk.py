"""A file system of a few megabytes, to fill up. Needs root; skipped where it cannot be mounted."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SmallDisk = Callable[[str], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Call with a size such as "2m": an empty tmpfs of that size, gone after the test."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
