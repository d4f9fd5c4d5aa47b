"""Gradients travel over the slower of two interfaces, or by a backend that is not made for the device."""

from flatout.diagnosis.finding import Finding, Fix
from flatout.diagnosis.signals import Signals


def find(signals: Signals) -> Finding | None:
    ranks = signals.ranks
    if ranks is None or ranks.world_size < 2:
        return None
    if signals.device.kind == "cuda" and ranks.backend == "gloo":
        return Finding(
            "wrong-backend",
            "network",
            "Gradients of CUDA devices go over gloo, through the host's memory",
            ("backend gloo, device cuda",),
            Fix("use the nccl backend"),
        )
    if ranks.faster_interface is None:
        return None
    return Finding(
        "wrong-interface",
        "network",
        f"Gradients go over {ranks.interface} though {ranks.faster_interface} is faster",
        (f"interface {ranks.interface}",),
        Fix(f"set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to {ranks.faster_interface}"),
    )
