"""What a network interface has sent and received, by the kernel's own counters."""

from pathlib import Path


class Traffic:
    """Byte counters of one network interface, as differences."""

    def __init__(self, interface: str) -> None:
        folder = Path("/sys/class/net") / interface / "statistics"
        self._files = [folder / "tx_bytes", folder / "rx_bytes"]
        self._before = self._read()

    def since_last(self) -> tuple[int | None, int | None]:
        """Bytes sent and received since this was asked before; None where the system does not say."""
        now, before = self._read(), self._before
        self._before = now
        if now is None or before is None:
            return None, None
        return now[0] - before[0], now[1] - before[1]

    def _read(self) -> tuple[int, int] | None:
        try:
            sent, received = (int(file.read_text(encoding="ascii")) for file in self._files)
        except (OSError, ValueError):
            return None
        return sent, received
