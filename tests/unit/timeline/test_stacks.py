"""Looking at other threads never stops the process."""

import gc
import subprocess
import sys
import threading
import time
import weakref

from flatout.timeline.stacks import frames_of_others

GARBAGE = """
import gc, sys, threading, time
from flatout.timeline.stacks import frames_of_others

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
        frames_of_others()

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
    frames_of_others()
    assert gc.isenabled()
    gc.disable()
    try:
        frames_of_others()
        assert not gc.isenabled()
    finally:
        gc.enable()


class Batch:
    """Anything that can be watched."""


def test_what_a_frame_holds_is_gone_with_it() -> None:
    """Without a garbage collection: a loader's iterator that lives until the end of the process stops its workers late."""
    looked, kept = threading.Event(), []

    def train() -> None:
        batch = Batch()
        kept.append(weakref.ref(batch))
        looked.wait(30)

    def look() -> None:
        frames = frames_of_others()
        frame = frames.pop(trainer.ident)  # a local variable, as in a sampler
        assert frame.f_code.co_filename

    trainer = threading.Thread(target=train)
    gc.collect()
    gc.disable()
    try:
        trainer.start()
        while not kept:
            time.sleep(0.001)
        looker = threading.Thread(target=look)
        looker.start()
        looker.join()
        looked.set()
        trainer.join()
        assert kept[0]() is None
    finally:
        gc.enable()
