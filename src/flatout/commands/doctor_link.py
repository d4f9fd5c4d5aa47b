"""The doctor's check of what lies between the nodes."""

from flatout.commands.doctor_data import CheckResult
from flatout.config.schema import Config
from flatout.engine.devices import choose_device
from flatout.engine.parallel.joining import own_place, process_group
from flatout.training.link_preflight import named_speed, refuse_slow_link
from flatout.units import format_seconds

_SLOW_BITS_PER_SECOND = 1e9


def check_link(config: Config) -> CheckResult:
    """Measured where the ranks are there: under torchrun, on every node."""
    parallel = config.parallel
    if parallel.mode in ("single", "dp"):
        return CheckResult("link", "ok", "one process: nothing is sent between nodes")
    place = own_place(config)
    if place is None and parallel.nodes == 1:
        return CheckResult("link", "ok", f"{parallel.mode} on one machine: measured when training starts")
    if place is None:
        start = f"torchrun --nnodes {parallel.nodes} --nproc-per-node M --rdzv-backend c10d --rdzv-endpoint HOST:29500"
        return CheckResult(
            "link",
            "warning",
            f"{parallel.nodes} nodes: one process cannot measure what lies between them",
            f"start it on every node: {start} -m flatout doctor CONFIG",
        )
    with process_group(config, place) as ranks:
        figures, interface = ranks.measure_link(choose_device(config.device).torch), ranks.interface
    assert figures is not None, "`place` is one of several"
    found = 8 * figures.bytes_per_second
    text = (
        f"{figures.world_size} ranks on {len(figures.nodes)} node(s) over {interface}: {named_speed(found)}, "
        f"{format_seconds(figures.latency_seconds)} for the smallest exchange"
    )
    refuse_slow_link({"bits_per_second": found}, config)
    if found < _SLOW_BITS_PER_SECOND:
        return CheckResult(
            "link", "warning", text, "raise the port's speed, or see docs/slow-links.md: parallel.compress"
        )
    return CheckResult("link", "ok", text)
