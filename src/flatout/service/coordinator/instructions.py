"""What the coordinator's decisions ask for; carried out by coordinator.py, or by the simulator.

A trace (`flatout serve --trace`) holds the repr of these, so a change of a name or field makes old traces differ.
"""

from dataclasses import dataclass

from flatout.service.coordinator.entities import BatchId
from flatout.service.protocol.messages import Message


@dataclass(frozen=True)
class Tell:
    """Send a message to a job or producer."""

    to: str
    message: Message


@dataclass(frozen=True)
class Make:
    """Allocate a new buffer, before any message that names it is sent."""

    buffer: int
    bytes: int


@dataclass(frozen=True)
class Discard:
    """Remove a buffer and the batch in it; a process that has it mapped keeps its memory."""

    buffer: int
    key: BatchId | None


@dataclass(frozen=True)
class End:
    """Kill a producer that hangs; the transport then reports it as lost."""

    producer: str
    reason: str


@dataclass(frozen=True)
class Touch:
    """Renew the time to live of a batch that is still needed."""

    key: BatchId


Instruction = Tell | Make | Discard | End | Touch
