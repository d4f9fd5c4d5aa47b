"""What sharing did for one job."""

from dataclasses import dataclass, field
from typing import Any

from flatout.service.protocol.messages import Batches

_SHARES = {name: name for name in ("share_seconds", "share_byte_seconds", "share_gb_seconds", "share_requests")}
_SHARES |= {f"service_{name}": name for name in ("made", "evicted_needed", "cold_starts")}
"""Fields of SharingStats, and the fields of Batches that they are the totals of."""


@dataclass
class SharingStats:
    """The `shared` section of summary.json: totals over all connections of one job."""

    hits: int = 0  # batches that others made
    local: int = 0  # made here because the service did not have them in time
    alone: int = 0  # made by the local pool while there was no service
    written_back: int = 0
    asks: int = 0
    most_asks_per_batch: int = 0
    busy_answers: int = 0  # that came when no producer was free
    wait_seconds: float = 0.0
    bytes: int = 0
    spoilt: int = 0
    outages: int = 0
    rejoined: int = 0
    connected_seconds: float = 0.0
    share_seconds: float = 0.0  # of the coordinator's time, divided among its jobs
    share_byte_seconds: float = 0.0  # of what the cache held
    share_gb_seconds: float = 0.0  # of what functions took
    share_requests: float = 0.0
    service_made: int = 0  # batches, for all jobs while this one was there
    service_evicted_needed: int = 0  # evicted before all who would read them had
    service_cold_starts: int = 0
    last_trouble: str | None = None
    bill: Batches = field(default_factory=Batches, repr=False)
    """The newest answer of this connection: its shares are totals since the job joined, so only the last one counts."""

    def close_bill(self) -> None:
        """The connection ended: its shares are added to those of the ones before."""
        for name, value in self._shares().items():
            setattr(self, name, value)
        self.bill = Batches()

    def _shares(self) -> dict[str, float]:
        return {name: getattr(self, name) + getattr(self.bill, source) for name, source in _SHARES.items()}

    def summary(self, connected_seconds: float, order_begins_at: list[int]) -> dict[str, Any]:
        """For summary.json; `connected_seconds` of the connection that is open now."""
        values = {name: value for name, value in vars(self).items() if name != "bill"}
        connected = self.connected_seconds + connected_seconds
        return {**values, **self._shares(), "connected_seconds": connected, "order_begins_at": order_begins_at}
