"""Device memory: m0 + B m1 rho."""

from dataclasses import dataclass

CONTEXT_BYTES = 600_000_000
"""What a CUDA context with the kernels of cuDNN and cuBLAS takes; it is no tensor, and in no peak of torch's."""
NCCL_BYTES = 500_000_000
"""What NCCL takes for its channels, where there are several ranks."""
FRAGMENTED_SHARE = 0.1
"""Of the rest: what the allocator cannot use, though it is free."""


def room_bytes(total_bytes: float, ranks: int = 1) -> float:
    """What tensors may take of a device's memory."""
    taken = CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    return max(0.0, total_bytes - taken) * (1 - FRAGMENTED_SHARE)


@dataclass(frozen=True)
class MemoryUse:
    """`fixed_bytes` for weights, optimizer and workspace; `bytes_per_sample` of activations."""

    fixed_bytes: float
    bytes_per_sample: float
    checkpointed_share: float = 0.3
    """rho: what full gradient checkpointing keeps of the activations."""

    def peak_bytes(self, batch: float, checkpointing: bool = False) -> float:
        share = self.checkpointed_share if checkpointing else 1.0
        return self.fixed_bytes + batch * self.bytes_per_sample * share
