"""The device's own step: G(B) = a + g B."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceTime:
    """`base_seconds` of every step and `seconds_per_sample`, of which `forward_share` is the forward pass."""

    base_seconds: float
    seconds_per_sample: float
    forward_share: float = 1 / 3

    def step_seconds(self, batch: float, checkpointing: bool = False, accumulate: int = 1) -> float:
        """Full gradient checkpointing computes the forward pass once more; each part of a batch pays the base."""
        seconds = self.base_seconds * accumulate + self.seconds_per_sample * batch
        return seconds * (1 + self.forward_share) if checkpointing else seconds


def fit_device_time(points: Sequence[tuple[float, float]], forward_share: float = 1 / 3) -> DeviceTime:
    """Least squares over (batch, seconds); one point alone is taken as proportional, which is the cautious guess
    for larger batches. A fit that would make a base or a sample negative is replaced by the nearest that does not."""
    batches = [batch for batch, _ in points]
    mean_batch = sum(batches) / len(points)
    mean_seconds = sum(seconds for _, seconds in points) / len(points)
    variance = sum((batch - mean_batch) ** 2 for batch in batches)
    slope = mean_seconds / mean_batch
    if variance > 0:
        slope = sum((batch - mean_batch) * (seconds - mean_seconds) for batch, seconds in points) / variance
    slope = min(max(slope, 0.0), mean_seconds / mean_batch)
    return DeviceTime(mean_seconds - slope * mean_batch, slope, forward_share)
