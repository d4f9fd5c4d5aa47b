"""What the machine does while a run goes on: one small reader for each source, sampled by a thread.

A reader gives a row's cells by column name; what it cannot read is None, never 0 or 100.
"""

from flatout.machine.sampler import Cell, Monitor, SystemReader

__all__ = ["Cell", "Monitor", "SystemReader"]
