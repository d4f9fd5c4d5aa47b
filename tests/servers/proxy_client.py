"""Start the fault proxy and steer it: `with FaultProxy("127.0.0.1", port) as proxy: proxy.set(Faults(...))`."""

import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.fault_proxy import CONTROL_PATH
from servers.faults import Faults, Rule


@dataclass(frozen=True)
class ProxyCounts:
    requests: int
    in_flight: int
    max_in_flight: int
    body_bytes: int
    hits: dict[str, int]
    """How often each kind of fault struck."""


class FaultProxy:
    """The proxy's process and its control path. It ends when its pipe to us closes, so a killed test leaves none."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.upstream = (upstream_host, upstream_port)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "FaultProxy":
        host, port = self.upstream
        self._process = subprocess.Popen(
            [sys.executable, "-m", "servers.fault_proxy", host, str(port)],
            cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def set(self, faults: Faults) -> None:
        """These faults from now on; rules count from zero."""
        self._control("PUT", faults.to_json().encode())

    def rules(self, *rules: Rule, latency_seconds: float = 0.0) -> None:
        self.set(Faults(latency_seconds=latency_seconds, rules=list(rules)))

    def clear(self) -> None:
        """No faults, counters at zero."""
        self.set(Faults())
        self._control("DELETE")

    def counts(self) -> ProxyCounts:
        return ProxyCounts(**self._control("GET"))

    def _control(self, method: str, body: bytes | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self.endpoint + CONTROL_PATH.decode(), data=body, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            result: dict[str, Any] = json.load(answer)
        return result
