"""The service of shared batches in the foreground, and a look into the one that runs. Needs no torch."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from flatout.app.stopping import stop_signals
from flatout.cost import load_catalogue
from flatout.data.budgets import usable_cores
from flatout.errors import ConfigError, ServiceUnavailable
from flatout.service.daemon import Beyond, Service, connect, default_capacity_bytes, runtime_place
from flatout.service.messages import Ask, Status
from flatout.service.policy import Policy
from flatout.units import format_bytes, format_seconds, format_share, parse_bytes

if TYPE_CHECKING:
    from flatout.service.functions import Caller

_KEEP_ALIVE_SECONDS = 600.0  # well within the hour after which Redis forgets


@dataclass(frozen=True)
class ServeOptions:
    """As on the command line."""

    capacity: str | None = None
    threads: int | None = None
    eviction: str = "reuse"
    trace: Path | None = None
    listen: str | None = None
    redis: str | None = None
    ray: str | None = None
    function: str | None = None
    usd_per_hour: float | None = None


def serve(options: ServeOptions, quiet: bool) -> dict[str, Any]:
    """Serve until Ctrl-C or `flatout cache stop`; the last figures."""
    if (options.listen is None) != (options.redis is None):
        raise ConfigError("--listen and --redis go together: jobs on other machines cannot read this one's memory")
    capacity_bytes = default_capacity_bytes() if options.capacity is None else parse_bytes(options.capacity)
    policy = Policy(
        capacity_bytes, eviction="lru" if options.eviction == "lru" else "reuse", recycles=options.redis is None,
        usd_per_hour=options.usd_per_hour, keep_alive_seconds=None if options.redis is None else _KEEP_ALIVE_SECONDS,
    )  # fmt: skip
    place, beyond = runtime_place(), Beyond(options.listen, options.redis, tuple(_callers(options)))
    service = Service(place, policy, options.threads, options.trace, beyond)
    if not quiet:
        remote = f"data.shared=grpc://{options.listen} data.shared_token={place.token} (a copy of it, mode 0600)"
        Console(stderr=True, highlight=False).print(
            f"sharing batches in {format_bytes(capacity_bytes)}; jobs come with "
            f"{'data.shared=auto' if options.listen is None else remote}; Ctrl-C ends it",
            markup=False,
        )
    for number in stop_signals():
        signal.signal(number, lambda *_: service.reception.stop())
    return service.run(until_empty=False)


def _callers(options: ServeOptions) -> Iterator[Callable[[], "Caller"]]:
    from flatout.service.functions import LambdaCaller, RayCaller

    if options.ray is not None:
        address = None if options.ray == "local" else options.ray
        yield lambda: RayCaller(address, options.threads or usable_cores())
    if options.function is not None:
        function = options.function
        price = load_catalogue(None).find("functions", "x86", "usd_per_gb_second", "us-east-1")
        usd = 0.0 if price is None else price.value
        yield lambda: LambdaCaller(function, options.redis, options.threads or 16, usd_per_gb_second=usd)


def look(what: str = "status") -> dict[str, Any]:
    """What the service of this user holds and does; `clear` empties it, `stop` ends it."""
    try:
        wire, _ = connect(runtime_place(), "viewer", "flatout-cache")
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"{error}; a job with data.shared=auto starts one, or `flatout serve`") from None
    try:
        answer = wire.ask(Ask.model_validate({"what": what}), 10.0)
    finally:
        wire.close()
    if not isinstance(answer, Status):
        raise ServiceUnavailable(f"the service of shared batches answered with a {type(answer).__name__}")
    return answer.values


def print_look(values: dict[str, Any]) -> None:
    counts = values["counts"]
    served = counts["hits"] + counts["waited"]
    lines = [
        f"{values['ready']} batches in {format_bytes(values['used_bytes'])} of {format_bytes(values['capacity_bytes'])}"
        f" ({values['store']}), {values['leases']} being made, up for {format_seconds(values['seconds'])}",
        f"{served} batches served: {format_share(counts['hits'], served)} were ready, {counts['waited']} were waited "
        f"for, {counts['denied']} denied; each of the {counts['made']} made was read "
        f"{_times(served, counts['made'])} times",
        f"{format_bytes(counts['made_bytes'])} made in {format_seconds(counts['made_seconds'])} of work; "
        f"{counts['failures']} failures, {counts['expired']} expired leases, {counts['cold_starts']} cold starts, "
        f"{counts['evicted']} evicted ({counts['evicted_needed']} still needed)",
    ]
    Console(highlight=False).print(Group(*(Text(line) for line in lines), _jobs(values)))


def _times(served: int, made: int) -> str:
    return f"{served / made:.1f}" if made else "n/a"


def _jobs(values: dict[str, Any]) -> Table:
    table = Table("job", "stream", "position", "step", "waits", box=None, pad_edge=False)
    for name, job in values["jobs"].items():
        step = format_seconds(job["step_seconds"])
        table.add_row(name, job["stream"], str(job["position"]), step, "yes" if job["waiting"] else "no")
    return table
