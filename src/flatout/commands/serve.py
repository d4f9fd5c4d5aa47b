"""The service of shared batches in the foreground, and a look into the one that runs. Needs no torch."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from flatout import plugins
from flatout.cache.redis_address import parse_redis, redis_password
from flatout.cost import load_catalogue
from flatout.errors import ConfigError, ServiceUnavailable
from flatout.machine.budgets import usable_cores
from flatout.machine.net import is_local
from flatout.service.coordinator.policy import Policy
from flatout.service.protocol.messages import Ask, Status
from flatout.service.transport.daemon import connect
from flatout.service.transport.paths import ServicePaths, service_paths
from flatout.service.transport.roots import AllowedCode, allowed_roots
from flatout.service.transport.service import Certificate, RemoteOptions, Service, default_capacity_bytes
from flatout.service.transport.stores import StoreAccess
from flatout.training.stopping import stop_signals
from flatout.units import format_bytes, format_seconds, format_share, parse_bytes

if TYPE_CHECKING:
    from flatout.service.producers.functions import Caller

_KEEP_ALIVE_SECONDS = 600.0  # well within the hour after which Redis forgets


@dataclass(frozen=True)
class ServeOptions:
    """As on the command line."""

    capacity: str | None = None
    threads: int | None = None
    eviction: str = "reuse"
    trace: Path | None = None
    listen: str | None = None
    data: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    redis: str | None = None
    redis_password_file: Path | None = None
    ray: str | None = None
    function: str | None = None
    usd_per_hour: float | None = None


def serve(options: ServeOptions, quiet: bool) -> dict[str, Any]:
    """Serve until Ctrl-C or `flatout cache stop`; the last figures."""
    remote = _remote_options(options)
    capacity_bytes = default_capacity_bytes() if options.capacity is None else parse_bytes(options.capacity)
    policy = Policy(
        capacity_bytes,
        eviction="lru" if options.eviction == "lru" else "reuse",
        recycles=options.redis is None,
        usd_per_hour=options.usd_per_hour,
        keep_alive_seconds=None if options.redis is None else _KEEP_ALIVE_SECONDS,
    )
    place = service_paths()
    service = Service(place, policy, options.threads, options.trace, remote)
    if not quiet:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        come = "data.shared=auto" if remote.listen is None else _invitation(remote, place)
        console.print(
            f"sharing batches in {format_bytes(capacity_bytes)}; jobs come with {come}; Ctrl-C ends it", markup=False
        )
        for line in open_to_others(remote):
            console.print(line, markup=False)
    for number in stop_signals():
        signal.signal(number, lambda *_: service.sessions.stop())
    return service.run(until_empty=False)


def _remote_options(options: ServeOptions) -> RemoteOptions:
    if (options.listen is None) != (options.redis is None):
        raise ConfigError("--listen and --redis go together: jobs on other machines cannot read this one's memory")
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together: a certificate is of no use without its private key")
    if options.redis is None or options.listen is None:
        return RemoteOptions(
            callers=tuple(_callers(options)),
            roots=allowed_roots(options.data) if options.data else None,
            code=_allowed_code(options.code),
        )
    if not options.data:
        raise ConfigError(
            f"--listen {options.listen} lets others name the data that this machine opens; say what they may name with "
            "--data ROOT (a folder or s3://bucket/prefix), as often as needed"
        )
    redis = parse_redis(options.redis, redis_password(options.redis_password_file), options.tls_ca)
    tls = None
    if options.tls_cert is not None and options.tls_key is not None:
        tls = Certificate(options.tls_cert, options.tls_key)
    roots, code = allowed_roots(options.data), _allowed_code(options.code)
    return RemoteOptions(options.listen, redis, tuple(_callers(options)), roots, tls, code)


def _allowed_code(names: Sequence[str]) -> AllowedCode:
    """The texts of these files as they are now: a file that changes is not allowed any more."""
    wanted = [name if plugins.is_reference(name) else f"{name}:any" for name in names]
    return AllowedCode(digests=frozenset(plugins.source_digest("transforms", name, "--code") for name in wanted))


def _invitation(remote: RemoteOptions, place: ServicePaths) -> str:
    authority = "" if remote.tls is None else f" data.shared_tls_ca=FILE (who signed {remote.tls.chain})"
    return f"data.shared=grpc://{remote.listen} data.shared_token={place.token} (a copy of it, mode 0600){authority}"


def open_to_others(remote: RemoteOptions) -> Iterator[str]:
    """What crosses a wire without encryption; one line each."""
    if remote.listen is not None and remote.tls is None:
        yield (
            f"no TLS on {remote.listen}: it is loopback, which no other machine reaches; where other users of this one "
            "are not trusted, give --tls-cert and --tls-key"
        )
    redis = remote.redis
    if redis is not None and redis.host and not redis.tls and not is_local(redis.host):
        yield (
            f"no TLS and no password at {redis.text}: whoever reaches it can read and delete batches (jobs refuse what "
            "others wrote); rediss:// and --redis-password-file keep them out"
        )


def _callers(options: ServeOptions) -> Iterator[Callable[[StoreAccess], "Caller"]]:
    from flatout.service.producers.functions import RayCaller
    from flatout.service.producers.lambda_caller import LambdaCaller

    if options.ray is not None:
        address = None if options.ray == "local" else options.ray
        yield lambda access: RayCaller(address, options.threads or usable_cores())
    if options.function is not None:
        function = options.function
        price = load_catalogue(None).find("functions", "x86", "usd_per_gb_second", "us-east-1")
        usd = 0.0 if price is None else price.value
        yield lambda access: LambdaCaller(function, access, options.threads or 16, usd_per_gb_second=usd)


def look(what: str = "status") -> dict[str, Any]:
    """What the service of this user holds and does; `clear` empties it, `stop` ends it."""
    try:
        wire, _ = connect(service_paths(), "viewer", "flatout-cache")
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"{error}; a job with data.shared=auto starts one, or `flatout serve`") from None
    try:
        answer = wire.ask(Ask.model_validate({"what": what}), 10.0)
    finally:
        wire.close()
    if not isinstance(answer, Status):
        raise ServiceUnavailable(f"the service of shared batches answered with a {type(answer).__name__}")
    return answer.values


def look_shown(values: dict[str, Any]) -> Group:
    counts = values["counts"]
    served = counts["hits"] + counts["waited"]
    times = f"{served / counts['made']:.1f}" if counts["made"] else "n/a"
    lines = [
        f"{values['ready']} batches in {format_bytes(values['used_bytes'])} of {format_bytes(values['capacity_bytes'])}"
        f" ({values['store']}), {values['leases']} being made, up for {format_seconds(values['seconds'])}",
        f"{served} batches served: {format_share(counts['hits'], served)} were ready, {counts['waited']} were waited "
        f"for, {counts['denied']} denied; each of the {counts['made']} made was read {times} times",
        f"{format_bytes(counts['made_bytes'])} made in {format_seconds(counts['made_seconds'])} of work; "
        f"{counts['failures']} failures, {counts['expired']} expired leases, {counts['cold_starts']} cold starts, "
        f"{counts['evicted']} evicted ({counts['evicted_needed']} still needed)",
    ]
    return Group(*map(Text, lines), _jobs(values))


def _jobs(values: dict[str, Any]) -> Table:
    table = Table("job", "stream", "position", "step", "waits", box=None, pad_edge=False)
    for name, job in values["jobs"].items():
        step = format_seconds(job["step_seconds"])
        table.add_row(name, job["stream"], str(job["position"]), step, "yes" if job["waiting"] else "no")
    return table
