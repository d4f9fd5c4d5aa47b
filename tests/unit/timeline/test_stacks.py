"""Looking at other threads never stops the process."""

import gc
import subprocess
import sys
import threading

from flatout.timeline.stacks import current_frames

GARBAGE = """
import gc, sys, threading, time
from flatout.timeline.stacks import current_frames

class Closes:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)  # lets another thread run, as closing a file or freeing a tensor does

over = threading.Event()

def look():
    while not over.is_set():
        kept = [Closes() for _ in range(20)]
        del kept
        current_frames()

gc.set_threshold(5)
threading.Thread(target=look, daemon=True).start()
for _ in range(1500):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
over.set()
print("went on")
"""


def test_garbage_is_not_collected_while_others_wait_to_start_a_thread() -> None:
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


def test_the_collection_is_as_it_was() -> None:
    assert threading.get_ident() in current_frames()
    assert gc.isenabled()
    gc.disable()
    try:
        current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
