"""One step from its parts: what overlaps is a maximum, what does not is a sum."""

import heapq
from collections.abc import Sequence

VARIABLE_CV = 0.3
"""Above this coefficient of variation a maximum of means is wrong and measured times are replayed."""


def step_seconds(device: float, exposed_communication: float, loading: float) -> float:
    """S = max(G + X, 1 / rate); `loading` is 1 / rate."""
    return max(device + exposed_communication, loading)


def replay(load_seconds: Sequence[float], device_seconds: float, workers: int, prefetch: int) -> float:
    """Mean step over measured load times: workers take batches in order, at most `prefetch` ahead of the step."""
    free = [0.0] * max(1, workers)
    taken_at: list[float] = []  # when the training thread took batch i, which lets batch i + prefetch be started
    clock = 0.0
    for number, seconds in enumerate(load_seconds):
        allowed = taken_at[number - prefetch] if number >= prefetch else 0.0
        ready = max(heapq.heappop(free), allowed) + seconds
        heapq.heappush(free, ready)
        taken = max(clock, ready)
        taken_at.append(taken)
        clock = taken + device_seconds
    return clock / len(load_seconds) if load_seconds else device_seconds


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation."""
    mean = sum(values) / len(values) if values else 0.0
    if mean <= 0:
        return 0.0
    return float((sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5 / mean)
