"""What an object store did for a run, for the summary."""

from typing import Any

from flatout.data.readers import Reader


def store_figures(reader: Reader) -> dict[str, Any]:
    """Requests of this process and how they went; empty where the kernel reads the files."""
    counters = getattr(getattr(getattr(reader, "inner", reader), "store", None), "counters", None)
    if counters is None:
        return {}
    counted = counters()
    return {
        "store_requests": counted.requests,
        "store_retries": counted.retries,
        "store_throttles": counted.throttles,
        "store_request_seconds_p50": counted.seconds_at(0.5),
        "store_request_seconds_p99": counted.seconds_at(0.99),
    }
