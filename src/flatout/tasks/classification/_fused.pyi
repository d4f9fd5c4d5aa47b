"""The compiled layers of fused.py, which alone calls them; see native/native.h. Optional: without them torch computes.

Arguments are numbers and addresses of contiguous tensors, whose sizes nobody checks here. Every function lets go of the
GIL and gives the same result in any number of threads.
"""

from typing import Any, Final

ABI: Final[int]

def supported() -> bool:
    """Whether this processor has AVX512_BF16 and what goes with it."""

def pack(images: int, to: int, /, *sizes: int) -> None: ...
def pool(backward: bool, source: int, to: int, places: int, /, *sizes: int) -> None: ...
def conv(geometry: tuple[int, ...], x: int, weights: int, packed: int, z: int, partial: int, /) -> None: ...
def conv_to_inputs(geometry: tuple[int, ...], gradient: int, weights: int, packed: int, x_gradient: int, /) -> None: ...
def conv_to_weights(
    geometry: tuple[int, ...], x: int, gradient: int, scratch: int, weight_gradient: int, /
) -> None: ...
def scratch_pairs(geometry: tuple[int, ...], /) -> int:
    """Numbers of 32 bits that conv_to_weights needs as scratch."""

def norm(
    extent: tuple[int, ...],
    norm: tuple[Any, ...],
    partial: int,
    z: int,
    residual: int,
    relu: bool,
    factors: int,
    y: int,
    /,
) -> None: ...
def norm_backward(extent: tuple[int, ...], norm: tuple[Any, ...], /, *addresses: int) -> None: ...
