"""Look at machine, recipe, store and data before money is spent: one line each, with a remedy where one is needed."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from flatout.commands.doctor_data import CheckResult, check_data
from flatout.commands.doctor_link import check_link
from flatout.commands.doctor_pace import check_pace
from flatout.config.loading import load_config
from flatout.config.schema import Config
from flatout.cost import hourly_rate_usd, load_catalogue
from flatout.data.pixels.decode import decoder_name
from flatout.decisions.compute import choose_device_kind
from flatout.decisions.loading import choose_workers
from flatout.engine.devices import choose_device, present_devices
from flatout.engine.parallel.place import find_place
from flatout.errors import FlatoutError
from flatout.machine.budgets import memory_budget_bytes, usable_cores
from flatout.units import format_bytes, format_usd

_DISK_BYTES = 64 << 20
_SLOW_DISK_BYTES_PER_SECOND = 50e6
_LITTLE_MEMORY_BYTES, _LITTLE_SHM_BYTES, _LITTLE_DISK_BYTES = 2 << 30, 256 << 20, 2 << 30
_OLDEST_CLOCK_UNIX = 1.75e9  # before this code was written


@dataclass(frozen=True)
class Checkup:
    """All lines, and how long they took."""

    lines: tuple[CheckResult, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        return 1 if any(line.status == "problem" for line in self.lines) else 0


def examine(
    source: Path | None,
    say: Callable[[CheckResult], None] = lambda line: None,
    overrides: Mapping[str, Any] | None = None,
) -> Checkup:
    """Every check in turn; `say` is told each line as it comes. A check that fails is a line, never a traceback.
    Started on every node by torchrun, the ranks measure the link between them, and rank 0 speaks."""
    started = time.monotonic()
    place = find_place(os.environ)
    lines = []
    for line in _all_lines(source, overrides):
        lines.append(line)
        if place is None or place.rank == 0:
            say(line)
    return Checkup(tuple(lines), time.monotonic() - started)


def _all_lines(source: Path | None, overrides: Mapping[str, Any] | None) -> Iterator[CheckResult]:
    config = Config()
    if source is not None:
        try:
            config = load_config(source, overrides).config
            yield CheckResult("recipe", "ok", f"{source} is valid")
        except FlatoutError as error:
            yield CheckResult("recipe", "problem", str(error), "correct the recipe; the checks below use the defaults")
            source = None
    for area, check in (
        ("device", _device),
        ("cores", _cores),
        ("memory", _memory),
        ("shm", _shared_memory),
        ("disk", _disk),
        ("clock", _clock),
        ("price", _price),
    ):
        yield _guarded(area, lambda check=check: check(config))  # type: ignore[misc]
    if source is not None:
        found = []
        for line in check_data(config):
            found.append(line)
            yield line
        alone = find_place(os.environ) is None  # ranks that measure together would measure each other
        if alone and config.spec.has_images and all(line.status != "problem" for line in found):
            yield _guarded("pace", lambda: check_pace(config))
        yield _guarded("link", lambda: check_link(config))


def _guarded(area: str, check: Callable[[], CheckResult]) -> CheckResult:
    try:
        return check()
    except FlatoutError as error:
        return CheckResult(area, "problem", str(error), "see the message")
    except OSError as error:
        return CheckResult(area, "warning", f"could not be looked at: {error}", "check permissions")


def _device(config: Config) -> CheckResult:
    device = choose_device(config.device)
    if device.kind == "cuda":
        free, total = torch.cuda.mem_get_info(device.torch)
        text = f"{device.name}, CUDA {torch.version.cuda}, {format_bytes(free)} of {format_bytes(total)} free"
        if free < 0.5 * total:
            return CheckResult("device", "warning", text, "another process uses it: nvidia-smi shows which")
        return CheckResult("device", "ok", text)
    text = f"{device.name}, torch {torch.__version__}, decoder {decoder_name()}"
    chosen = choose_device_kind(config.device, present_devices())
    if chosen.was_open and chosen.value == "cpu" and Path("/dev/nvidia0").exists():
        return CheckResult(
            "device",
            "problem",
            f"{text}, but there is a GPU that torch cannot use",
            "install a CUDA build of torch that fits the driver",
        )
    return CheckResult("device", "ok", text)


def _cores(config: Config) -> CheckResult:
    usable, total = usable_cores(), os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    text = f"{usable} of {total} usable, load {load:.1f}"
    workers = choose_workers(config.data.workers, usable, choose_device(config.device).kind).value
    if workers > 2 * usable:
        return CheckResult(
            "cores", "warning", f"{text}; data.workers is {workers}", f"set data.workers to at most {usable}"
        )
    if load > 1.5 * usable:
        return CheckResult("cores", "warning", text, "something else is busy here: end it, or timings will be off")
    return CheckResult("cores", "ok", text)


def _memory(config: Config) -> CheckResult:
    free = 2 * memory_budget_bytes()
    text = f"{format_bytes(free)} free of {format_bytes(psutil.virtual_memory().total)} (container limits counted)"
    if free < _LITTLE_MEMORY_BYTES:
        return CheckResult("memory", "warning", text, "use fewer workers, a smaller data.prefetch, or data.cache: off")
    return CheckResult("memory", "ok", text)


def _shared_memory(config: Config) -> CheckResult:
    folder = Path("/dev/shm")  # noqa: S108
    if not folder.is_dir():
        return CheckResult(
            "shm", "warning", "there is no /dev/shm", "worker processes use /tmp instead, which may be slow"
        )
    free = shutil.disk_usage(folder).free
    text = f"{format_bytes(free)} free in {folder}"
    if free < _LITTLE_SHM_BYTES:
        return CheckResult("shm", "warning", text, "start the container with --shm-size=8g, or use thread workers")
    return CheckResult("shm", "ok", text)


def _disk(config: Config) -> CheckResult:
    """Writes and reads back 64 MB where runs go."""
    folder = next(each for each in (Path("runs").resolve(), *Path("runs").resolve().parents) if each.is_dir())
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_DISK_BYTES:
        return CheckResult(
            "disk", "problem", f"{format_bytes(free)} free in {folder}", "free some space, or use --run DIR"
        )
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".flatout-doctor-") as file:
        block = os.urandom(1 << 20)
        started = time.perf_counter()
        for _ in range(_DISK_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        rate = _DISK_BYTES / (time.perf_counter() - started)
    text = f"{format_bytes(free)} free, writes {format_bytes(rate)}/s in {folder}"
    if rate < _SLOW_DISK_BYTES_PER_SECOND:
        return CheckResult("disk", "warning", text, "checkpoints will take long: save rarely, or use a faster disk")
    return CheckResult("disk", "ok", text)


def _clock(config: Config) -> CheckResult:
    if time.time() < _OLDEST_CLOCK_UNIX:
        text = f"says {time.strftime('%Y-%m-%d', time.gmtime())}"
        return CheckResult("clock", "problem", text, "set it: signed requests to a store are refused when it is off")
    return CheckResult("clock", "ok", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()))


def _price(config: Config) -> CheckResult:
    rate = hourly_rate_usd(config.cost, load_catalogue(config.cost.prices))
    if rate is None:
        return CheckResult("price", "ok", "none set: cost will be n/a (cost.instance or cost.usd_per_hour)")
    limit = config.stop.max_usd
    text = f"{format_usd(rate)} an hour" + ("" if limit is None else f", stops at {format_usd(limit)}")
    if limit is None:
        return CheckResult("price", "warning", f"{text}, without a limit", "set stop.max_usd or stop.max_seconds")
    return CheckResult("price", "ok", text)
