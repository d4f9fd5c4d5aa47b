"""Device time from events; a fake queue stands in for CUDA's (see docs/untested-on-gpu.md)."""

from flatout.engine.device_clock import CudaClock


class Queue:
    """Events happen when the device gets to them: `now` is where its queue will have come."""

    def __init__(self) -> None:
        self.now = 0.0

    def event(self) -> "Event":
        return Event(self)


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def record(self) -> None:
        self.at = self.queue.now

    def elapsed_time(self, end: "Event") -> float:
        return 1000 * (end.at - self.at)


def test_time_between_two_events_belongs_to_the_later_name() -> None:
    queue = Queue()
    clock = CudaClock(queue.event)
    clock.mark("idle")
    for _ in range(2):
        for name, seconds in (("copy", 1.0), ("forward", 2.0), ("backward", 4.0), ("idle", 8.0)):
            queue.now += seconds
            clock.mark(name)
    assert clock.shares() == {"copy": 2.0, "forward": 4.0, "backward": 8.0, "idle": 16.0}
    queue.now += 32.0
    clock.mark("forward")
    assert clock.shares() == {"forward": 32.0}  # from where the last stretch ended
    assert clock.shares() == {}
