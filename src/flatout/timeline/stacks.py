"""Where threads are just now."""

import gc
import os
import sys
from threading import get_ident
from types import FrameType

_COLLECTS_INSIDE = sys.version_info < (3, 12)
_off = False  # the garbage collection, by us


def frames_of_others() -> dict[int, FrameType]:
    """sys._current_frames() without the caller's own, which would hold the answer that holds it: a cycle that keeps
    what every frame holds (batches, iterators with their workers) until garbage is collected.

    Before Python 3.12 that function may stop the process for ever (CPython issue 106883): it holds a lock that whoever
    starts a thread waits for with the GIL, and a garbage collection inside of it may wait for the GIL."""
    global _off
    if _COLLECTS_INSIDE and gc.isenabled():
        _off = True
        gc.disable()
    try:
        frames = sys._current_frames()
    finally:
        _resume()
    del frames[get_ident()]
    return frames


def _resume() -> None:
    """In a child that was forked meanwhile, too."""
    global _off
    if _off:
        gc.enable()
        _off = False


os.register_at_fork(after_in_child=_resume)
