"""Where this process stands among the others, as torchrun (or whoever started it) says in the environment."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from flatout.errors import ConfigError
from flatout.machine.net import interface_to, is_local


@dataclass(frozen=True)
class RankPlace:
    """One rank among all, by the names of torchrun."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int
    attempt: int = 0  # how often the launcher has started the ranks anew
    launcher_keeps_store: bool = False  # torchrun's agent does, so that it outlives rank 0

    @property
    def nodes(self) -> int:
        return -(-self.world_size // self.local_world_size)

    @property
    def on_loopback(self) -> bool:
        """Whether the ranks meet at an address that no other machine can reach."""
        return is_local(self.master_address)

    @property
    def warning(self) -> str | None:
        """torch's store takes orders from whoever reaches it."""
        with suppress(OSError, ValueError):
            if ip_address(socket.gethostbyname(self.master_address)).is_global:
                return (
                    f"WARNING: the ranks meet at {self.master_address}:{self.master_port}, a public address, and the "
                    "store of torch there has no authentication; use a private network"
                )
        return None

    @property
    def host(self) -> str:
        return socket.gethostname()


def find_place(environment: Mapping[str, str]) -> RankPlace | None:
    """None where nobody started this process as one of several."""
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise ConfigError(f"RANK is set but {missing[0]} is not; start the ranks with torchrun, which sets all of them")
    try:
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        return RankPlace(
            rank,
            world,
            int(environment.get("LOCAL_RANK", 0 if world == 1 else rank)),
            int(environment.get("LOCAL_WORLD_SIZE", world)),
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
    except ValueError as error:
        raise ConfigError(f"the environment of this rank is not torchrun's: {error}") from None


def interface_towards(address: str) -> str:
    """The network interface through which packets to an address leave; loopback where that is this machine."""
    with suppress(OSError):
        return interface_to(socket.gethostbyname(address)) or "lo"
    return "lo"
