"""Messages between jobs, producers and the coordinator: small JSON objects, checked field by field.

The same messages go over unix sockets and gRPC. A frame is a magic number with the version, a length, and the JSON of
one message; frames over a megabyte, of another version or with anything else in them are refused. Batches are never
part of a message: they are in the store. Why pydantic and JSON: docs/decisions/0007-messages.md.
"""

import struct
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from flatout.errors import ServiceUnavailable
from flatout.service.protocol.stream_spec import STRICT, Digest, StreamSpec

VERSION = 5
MOST_BYTES = 1 << 20
FRAME = struct.Struct("<3sBI")
_MAGIC = b"FOs"

Name = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(max_length=2000)]
Secret = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Message(BaseModel):
    model_config = STRICT


class Hello(Message):
    """First message of every connection, to the service."""

    kind: Literal["hello"] = "hello"
    token: Secret = Field(repr=False)
    role: Literal["job", "producer", "viewer"]
    name: Name


class Welcome(Message):
    """The answer to Hello."""

    kind: Literal["welcome"] = "welcome"
    store: Annotated[str, Field(max_length=1000)]
    """Where batches are: a folder of mapped files, or the address of a Redis."""
    store_password: Secret | None = Field(None, repr=False)
    """Of the Redis. Sent only over TLS, on loopback or on a unix socket."""


class Equip(Message):
    """First message to a producer process: secrets go over its socket, since every user can read command lines."""

    kind: Literal["equip"] = "equip"
    store: Annotated[str, Field(max_length=1000)]
    token: Secret = Field(repr=False)
    store_password: Secret | None = Field(None, repr=False)
    tls_ca: str | None = None


class Refused(Message):
    """The answer to what cannot be done. `stop`: the job must end, since its data is not what it says."""

    kind: Literal["refused"] = "refused"
    reason: Reason
    stop: bool = False


class Register(Message):
    """From a job: the stream it will read, from `position` to before `last`."""

    kind: Literal["register"] = "register"
    stream: Digest
    spec: StreamSpec
    batches_per_epoch: Annotated[int, Field(ge=1, le=1 << 40)]
    batch_bytes: Annotated[int, Field(ge=1, le=1 << 36)]
    position: Count
    last: Count | None = None
    epoch: Count = 0
    index: Count = 0
    """With `epoch`: the batch at position 0."""
    anywhere: bool = False
    """May start where other jobs are, and read at the end of each epoch what it missed at its start."""
    epochs_differ: bool = False
    """The shape of batches depends on the epoch, so a first epoch must not start in a later one of others."""


class Registered(Message):
    """The answer to Register; `note` is for the job's user."""

    kind: Literal["registered"] = "registered"
    epoch: Count
    index: Count
    """With `epoch`: the batch at position 0, as registered or where the other jobs are."""
    jobs: Count
    """Jobs that read the stream, this one included."""
    note: Reason | None = None


class Next(Message):
    """From a job: it needs the batch at `position` and takes up to `count`; the answer may take `wait_seconds`."""

    kind: Literal["next"] = "next"
    position: Count
    count: Annotated[int, Field(ge=1, le=64)] = 1
    wait_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    released: Annotated[list[Count], Field(max_length=10_000)] = []
    """Buffers that this job does not read any more."""
    step_seconds: Seconds | None = None
    """Mean time between two batches that is the job's own; None before it is measured."""


class Batches(Message):
    """The answer to Next: batches that are ready, or none when the time was over. `denied`: why to make it yourself."""

    kind: Literal["batches"] = "batches"
    position: Count = 0
    buffers: Annotated[list[Count], Field(max_length=64)] = []
    """Numbers of the buffers of `position` and of those that follow it."""
    denied: Reason | None = None
    jobs: Count = 1
    """Jobs that read this stream now."""
    share_seconds: Seconds = 0.0
    """This job's share of the coordinator's time since it joined, divided equally among the jobs that were there."""
    share_byte_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Its share of the bytes that the cache held, times seconds."""
    share_gb_seconds: Annotated[float, Field(ge=0)] = 0.0
    share_requests: Annotated[float, Field(ge=0)] = 0.0
    """Its share of what functions took: of each batch, divided equally among the readers of the stream."""
    busy: bool = False
    """No producer was free, except perhaps the one that has just made this."""
    made: Count = 0
    evicted_needed: Count = 0
    cold_starts: Count = 0
    """All three by the whole service, since this job joined."""


class Claim(Message):
    """From a job: it makes this batch itself, and offers to write it to the store."""

    kind: Literal["claim"] = "claim"
    position: Count


class Claimed(Message):
    """The answer to Claim. Without a buffer: it is there already, somebody makes it, or there is no room."""

    kind: Literal["claimed"] = "claimed"
    lease: Count | None = None
    buffer: Count | None = None
    bytes: Count = 0
    epoch: Count = 0
    index: Count = 0


class Produce(Message):
    """An order to a producer; `spec` comes with its first order of a stream."""

    kind: Literal["produce"] = "produce"
    lease: Count
    stream: Digest
    spec: StreamSpec | None = None
    epoch: Count
    index: Count
    buffer: Count
    bytes: Count


class Done(Message):
    """From the holder of a lease: the batch is written. The coordinator verifies that."""

    kind: Literal["done"] = "done"
    lease: Count
    bytes: Count
    seconds: Seconds
    cold: bool = False
    """The maker had to open the data first, so `seconds` says nothing about the next batch."""
    gb_seconds: Seconds = 0.0
    """Memory times seconds that a function is billed for."""


class Failed(Message):
    """From the holder of a lease: no batch. `stream_is`: nor any other of this stream, or its data is not the job's."""

    kind: Literal["failed"] = "failed"
    lease: Count
    reason: Reason
    stream_is: Literal["fine", "unavailable", "another"] = "fine"


class Spoilt(Message):
    """From a job: a batch that was ready is gone, damaged, or not the one it should be."""

    kind: Literal["spoilt"] = "spoilt"
    position: Count
    buffer: Count


class Leave(Message):
    """From a job: its last message."""

    kind: Literal["leave"] = "leave"


class Lost(Message):
    """From the transport: the connection of a job or producer ended."""

    kind: Literal["lost"] = "lost"
    reason: Reason = ""


class Joined(Message):
    """From a producer: it works on `slots` orders at once; 0 while it starts."""

    kind: Literal["joined"] = "joined"
    slots: Annotated[int, Field(ge=0, le=10_000)]
    spare: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Further orders that may queue at it, so that it can answer several with one message."""
    usd_per_second: Seconds = 0.0
    seconds_to_start: Seconds = 0.0


class Tick(Message):
    """From the service's own timer, several times a second."""

    kind: Literal["tick"] = "tick"


class Ask(Message):
    """From `flatout cache`: the status, after emptying the cache (clear) or ending the service (stop)."""

    kind: Literal["ask"] = "ask"
    what: Literal["status", "clear", "stop"] = "status"


class Status(Message):
    """The answer to Ask; also an empty acknowledgement over gRPC, where every call has an answer."""

    kind: Literal["status"] = "status"
    values: dict[str, Any]


_Greeting = Hello | Welcome | Equip | Refused
_OfJobs = Register | Registered | Next | Batches | Claim | Claimed | Spoilt | Leave
_OfProducers = Joined | Produce | Done | Failed
AnyMessage = _Greeting | _OfJobs | _OfProducers | Lost | Tick | Ask | Status
_ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(Annotated[AnyMessage, Field(discriminator="kind")])


def encode(message: Message) -> bytes:
    """A frame."""
    body = message.model_dump_json().encode()
    if len(body) > MOST_BYTES:
        raise ServiceUnavailable(
            f"a {message.__class__.__name__} of {len(body)} bytes is over the {MOST_BYTES} allowed"
        )
    return FRAME.pack(_MAGIC, VERSION, len(body)) + body


def body_bytes(frame_header: bytes) -> int:
    """Length of the JSON that follows a frame's header; a header of anything else is a ServiceUnavailable."""
    magic, version, count = FRAME.unpack(frame_header)
    if magic != _MAGIC:
        raise ServiceUnavailable("the other side does not speak flatout's protocol of shared batches")
    if version != VERSION:
        raise ServiceUnavailable(
            f"the other side speaks version {version} of the protocol, this is {VERSION}; use the same version of "
            "flatout everywhere"
        )
    if count > MOST_BYTES:
        raise ServiceUnavailable(f"a message of {count} bytes is over the {MOST_BYTES} allowed")
    return int(count)


def decode_body(body: bytes) -> AnyMessage:
    """The message; what is not one of them, or has a field out of its limits, is a ServiceUnavailable."""
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ServiceUnavailable(f"a message makes no sense: {first['msg']} at {first['loc']}") from None


def decode(frame: bytes) -> AnyMessage:
    """Of one whole frame, as gRPC carries it."""
    if len(frame) < FRAME.size or len(frame) != FRAME.size + body_bytes(frame[: FRAME.size]):
        raise ServiceUnavailable(f"a frame of {len(frame)} bytes is not whole")
    return decode_body(frame[FRAME.size :])
