"""Where threads are just now."""

import gc
import os
import sys
from types import FrameType

_COLLECTS_INSIDE = sys.version_info < (3, 12)
_off = False  # the garbage collection, by us


def current_frames() -> dict[int, FrameType]:
    """sys._current_frames(), which may stop the process for ever before Python 3.12 (CPython issue 106883).

    It holds a lock that whoever starts a thread waits for with the GIL, and a garbage collection inside of it may wait
    for the GIL."""
    global _off
    if not (_COLLECTS_INSIDE and gc.isenabled()):
        return sys._current_frames()
    _off = True
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        _resume()


def _resume() -> None:
    """In a child that was forked meanwhile, too."""
    global _off
    if _off:
        gc.enable()
        _off = False


os.register_at_fork(after_in_child=_resume)
