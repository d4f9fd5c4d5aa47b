"""The process group: who is in it, and small values from rank to rank. JSON on the wire, never pickle."""

import json
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from flatout.engine.parallel.place import RankPlace
from flatout.errors import ConfigError, RunFailed

_LAUNCHER_SECONDS = 15.0
_JOIN_SECONDS = 300.0  # until the last rank has started; a node may still be booting


class Group:
    """Two groups of the same ranks: one for gradients on the device, one (gloo) for small values on the CPU."""

    def __init__(
        self, place: RankPlace, backend: str, collective_seconds: float, card: tuple[torch.device, str] | None = None
    ) -> None:
        """`card` is the GPU of this rank and its UUID, for NCCL."""
        self.place = place
        self.backend = backend
        deadline = timedelta(seconds=collective_seconds)
        hosts_store = place.rank == 0 and not place.launcher_keeps_store
        store = _connect(place, hosts_store)
        self.store = PrefixStore(f"flatout/{place.attempt}", store)
        if card is not None:
            require_own_card(self.store, place, card[1])
        try:
            dist.init_process_group(
                backend,
                store=self.store,
                rank=place.rank,
                world_size=place.world_size,
                timeout=deadline,
                device_id=None if card is None else card[0],  # NCCL connects now, not in the first step
            )
        except dist.DistBackendError as error:
            raise RunFailed(
                f"the ranks cannot meet over {backend}: {str(error).splitlines()[0]}; NCCL_DEBUG=WARN says more"
            ) from None
        self.control = dist.new_group(backend="gloo", timeout=deadline)

    def own_store(self, name: str) -> Store:
        """A connection of one's own: a thread must not wait for what the main thread asks of the store."""
        store = TCPStore(self.place.master_address, self.place.master_port, None, False)
        return PrefixStore(f"flatout/{self.place.attempt}/{name}", store)

    def begin_gather(self, values: list[float]) -> "Gathering":
        """Send a few numbers to everyone; the answer is waited for where it is needed."""
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.place.world_size)]
        return Gathering(rows, own, dist.all_gather(rows, own, group=self.control, async_op=True))

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value, by rank."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(row[0]) for row in self.begin_gather([float(len(data))]).rows()]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(data)] = data
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.control)
        return [json.loads(bytes(part[:size].numpy())) for part, size in zip(parts, sizes, strict=True)]

    def from_main(self, value: Any) -> Any:
        """Rank 0's value; what the others give does not matter."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, 0, group=self.control)
        text = data if self.place.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(text, 0, group=self.control)
        return json.loads(bytes(text.numpy()))

    def tensors_from_main(self, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Rank 0's tensors by name: a checkpoint need not be readable on every machine."""
        kinds = {name: [str(value.dtype), list(value.shape)] for name, value in (tensors or {}).items()}
        received = {}
        for name, (dtype, shape) in self.from_main(kinds).items():
            value = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            if tensors is not None and self.place.rank == 0:
                value.copy_(tensors[name])
            if value.numel():
                dist.broadcast(value.view(-1).view(torch.uint8), 0, group=self.control)
            received[name] = value
        return received

    def close(self) -> None:
        dist.destroy_process_group()


def require_own_card(store: Store, place: RankPlace, uuid: str) -> None:
    """Two ranks on one GPU wait for each other for ever inside NCCL, or end with an error that names neither."""
    store.set(f"card/{place.rank}", f"{uuid} {place.host}")
    cards = [store.get(f"card/{rank}").decode() for rank in range(place.world_size)]
    for card in cards:  # every rank finds the same: none is left waiting for those that end
        same = [str(rank) for rank, other in enumerate(cards) if other == card]
        if len(same) > 1:
            raise ConfigError(
                f"ranks {', '.join(same)} would share one GPU ({card.replace(' ', ' of ', 1)}); give each its own: one "
                "visible GPU for each task, or all of them for every task, and parallel.devices at most that many"
            )


def _connect(place: RankPlace, hosts_store: bool) -> TCPStore:
    """A launcher's store was there before the ranks were: where it does not answer, the launcher is gone."""
    seconds = _LAUNCHER_SECONDS if place.launcher_keeps_store else _JOIN_SECONDS
    deadline = timedelta(seconds=seconds)
    try:
        if hosts_store and place.on_loopback:
            store = loopback_store(place.master_port, deadline)
        else:
            store = TCPStore(place.master_address, place.master_port, None, hosts_store, deadline)
    except (dist.DistError, OSError) as error:
        raise RunFailed(
            f"the ranks cannot meet at {place.master_address}:{place.master_port} within {seconds:.0f} s: "
            f"{str(error).splitlines()[0]}; was the launcher ended, or is the address of another network?"
        ) from None
    store.set_timeout(timedelta(seconds=_JOIN_SECONDS))
    return store


def loopback_store(port: int, deadline: timedelta) -> TCPStore:
    """A store for this machine only: by itself torch listens on every interface, and believes whoever comes.

    Port 0 is any free one. What torch makes in this process at the same port is this store again (multi_tenant).
    """
    listening = socket.create_server(("127.0.0.1", port))
    port = listening.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        None,
        True,
        deadline,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
    )


class Gathering:
    def __init__(self, rows: list[Tensor], own: Tensor, work: Any) -> None:
        """Keeps what is sent and where it arrives until it is waited for, whatever a backend keeps by itself."""
        self._rows, self._own = rows, own
        self._work = work
        self.values: list[list[float]] | None = None

    def rows(self) -> list[list[float]]:
        if self.values is None:
            self._work.wait()
            self.values = [row.tolist() for row in self._rows]
        return self.values
