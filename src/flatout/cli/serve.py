from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.apps import Json, app, print_answer


class Eviction(StrEnum):
    reuse = "reuse"
    lru = "lru"


class CacheAction(StrEnum):
    status = "status"
    clear = "clear"
    stop = "stop"


@app.command()
def serve(
    capacity: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Room for batches (default a quarter of free memory).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that make batches (default one per core).")
    ] = None,
    eviction: Annotated[Eviction, typer.Option(help="What gives way: least reuse to come, or least recently used.")] = (
        Eviction.reuse
    ),
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record every message and decision, for flatout simulate.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve other machines by gRPC, with a token and a Redis.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="With --listen: open only data under this folder or s3:// prefix (repeat)."),
    ] = None,
    code: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Run the transform in this file (or module) for jobs that use it (repeat)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate (PEM) for --listen; needed beyond loopback.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key (PEM) of --tls-cert.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Authority (PEM) of a rediss:// (default: the system's).")
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep batches in a Redis or Valkey: redis://HOST:PORT, rediss:// with TLS."),
    ] = None,
    redis_password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its password (default: FLATOUT_REDIS_PASSWORD, if set).")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Make batches by Ray tasks on this cluster, or: local.")
    ] = None,
    function: Annotated[
        str | None, typer.Option("--lambda", metavar="NAME", help="Make batches by this AWS Lambda function.")
    ] = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Most that functions may cost in an hour; jobs then help themselves.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Share prepared batches between training jobs, in the foreground.

    One machine needs no server: with data.shared=auto the first job starts one
    and the last to leave ends it. This is the same service, to watch and tune.

    Examples:  flatout serve --bytes 8GB   |   flatout train my.yaml --set data.shared=auto
               flatout serve --listen 10.0.0.5:7070 --tls-cert server.pem --tls-key server.key
                             --data s3://bucket/imagenet --redis rediss://10.0.0.6:6379
    """
    from flatout.commands.serve import ServeOptions, look_shown
    from flatout.commands.serve import serve as run_service

    chosen = ServeOptions(
        capacity,
        threads,
        eviction.value,
        trace,
        listen,
        tuple(data or ()),
        tuple(code or ()),
        tls_cert,
        tls_key,
        tls_ca,
        redis,
        redis_password_file,
        ray,
        function,
        usd_per_hour,
    )
    print_answer(run_service(chosen, as_json), as_json, look_shown)


@app.command()
def cache(
    what: Annotated[
        CacheAction, typer.Argument(metavar="[clear|stop]", help="clear: empty it; stop: end the service.")
    ] = (CacheAction.status),
    as_json: Json = False,
) -> None:
    """Look into the cache of shared batches: hits, bytes, jobs, leases, rates.

    Examples:  flatout cache   |   flatout cache --json   |   flatout cache clear
    """
    from flatout.commands.serve import look, look_shown

    print_answer(look(what), as_json, look_shown)
