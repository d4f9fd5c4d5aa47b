"""Opens a loader whose batches are shared, from the `data` section of a configuration."""

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from flatout.cache.batch_store import BatchStore
from flatout.cache.shared_memory import memory_note
from flatout.config.schema import DataConfig
from flatout.data.loading.loader import Loader, open_loader, with_raw_shape
from flatout.data.loading.pinned_memory import memory_for
from flatout.data.loading.prepare import BatchPlan
from flatout.data.loading.staging import is_remote
from flatout.decisions import Change, Choice
from flatout.decisions.loading import HERE, choose_shared_bytes, choose_sharing, decide_shared
from flatout.errors import BadFile, ServiceUnavailable
from flatout.service.client.pool import SharedPool
from flatout.service.client.session import JoinSettings, ServiceConnection
from flatout.service.protocol.extras import needs
from flatout.service.protocol.messages import Register
from flatout.service.protocol.specs import batch_bytes, describe, stream_name
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.transport.daemon import connect, connect_or_start, start_daemon
from flatout.service.transport.paths import service_paths
from flatout.service.transport.stores import open_batch_store
from flatout.timeline import Recorder
from flatout.untrusted import check_shape, read_json


def open_shared_loader(
    recipe: BatchPlan,
    config: DataConfig,
    workers: int | Choice[int],
    device_kind: str,
    split: str = "train",
    epochs: int | None = None,
    order_file: Path | None = None,
    recorder: Recorder | None = None,
) -> tuple[Loader, SharedPool]:
    """A loader over a shared pool, and that pool. It has joined the service, or (see `notes`) will try again later.

    `order_file` keeps where the order of batches begins, so that a resumed run has the same order.
    """
    recipe = with_raw_shape(recipe)
    spec = describe(recipe, config, split)
    register = _registration(recipe, spec, epochs, _remembered(order_file), config.shared_start == "window")

    decided = decide_shared(config, workers, is_remote(recipe.split))
    changes: list[Change] = []

    def open_local() -> Loader:
        local = open_loader(recipe, config, workers, device_kind=device_kind, epochs=epochs)
        if local.decided is not None:
            changes.append(Change("data", asdict(local.decided), "this job prepares batches itself"))
        return local

    remember = _rememberer(order_file if config.shared_start == "window" else None)
    pool = SharedPool(recipe, JoinSettings(register, _connector(config), remember), open_local, memory_for(device_kind))
    pool.join()
    notes = tuple(pool.notes) or (f"shared: alone for now, {pool.stats.last_trouble}",)
    if decided.shared.value == HERE and (note := memory_note()) is not None:
        notes += (note,)
    loader = Loader(
        recipe,
        pool,
        decided.prefetch.value,
        config.batch_deadline_seconds,
        config.max_quarantine_share,
        recorder=recorder,
        notes=notes,
        decided=decided,
        changes=changes,
    )
    return loader, pool


def _registration(
    plan: BatchPlan, spec: StreamSpec, epochs: int | None, begins: tuple[int, int] | None, anywhere: bool
) -> Register:
    """`begins` is where an earlier attempt of the run began; without, the order may begin `anywhere`."""
    epoch, index = begins or (0, 0)
    return Register(
        stream=stream_name(spec),
        spec=spec,
        batches_per_epoch=plan.batches_per_epoch,
        batch_bytes=batch_bytes(plan),
        position=0,
        last=None if epochs is None else epochs * plan.batches_per_epoch,
        epoch=epoch,
        index=index,
        anywhere=anywhere and begins is None,
        epochs_differ=bool(plan.view.sizes),
    )


def _connector(config: DataConfig) -> Callable[[bool], tuple[ServiceConnection, BatchStore]]:
    capacity = choose_shared_bytes(config).value

    def remote(wait: bool) -> tuple[ServiceConnection, BatchStore]:
        with needs("service"):
            from flatout.service.transport.remote import GrpcConnection, read_token

        token, name = read_token(config.shared_token), f"{os.uname().nodename}-{os.getpid()}"
        address, deadline_seconds = config.shared.removeprefix("grpc://"), 10.0 if wait else 2.0
        connection = GrpcConnection(address, token, "job", name, deadline_seconds, config.shared_tls_ca)
        if "://" not in connection.access.address:
            connection.close()
            raise ServiceUnavailable(f"the service of shared batches at {address} names no Redis to read from")
        return connection, open_batch_store(connection.access)

    def connector(wait: bool) -> tuple[ServiceConnection, BatchStore]:
        paths = service_paths()
        name = f"{os.getpid()}-{secrets.token_hex(3)}"
        if wait:
            connection, access = connect_or_start(paths, name, capacity)
        else:
            try:
                connection, access = connect(paths, "job", name, deadline_seconds=1.0)
            except ServiceUnavailable:
                start_daemon(paths, capacity)  # not waited for: the next attempt to join finds it
                raise
        return connection, open_batch_store(replace(access, tls_ca=config.shared_tls_ca))

    return connector if choose_sharing(config.shared).value == HERE else remote


def _remembered(path: Path | None) -> tuple[int, int] | None:
    """Epoch and index of the batch where the order begins; None where no file says it."""
    try:
        values = read_json(path) if path is not None else None
        check_shape(values, ["count"], path)
    except (OSError, BadFile):
        return None
    return (values[0], values[1]) if values is not None and len(values) == 2 and None not in values else None


def _rememberer(path: Path | None) -> Callable[[int, int], None]:
    def remember(epoch: int, index: int) -> None:
        if path is not None:
            temporary = path.with_suffix(".new")
            temporary.write_text(json.dumps([epoch, index]), encoding="ascii")
            temporary.replace(path)

    return remember
