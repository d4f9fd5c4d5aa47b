"""Spans of the main thread, and monitors of the machine."""

from flatout.timeline.recorder import PARTS, Recorder

__all__ = ["PARTS", "Recorder"]
