"""What jobs, producers and the coordinator say to each other: small JSON objects, checked field by field.

The same messages go over a unix socket and gRPC. A frame is a magic word with the version, a length, and the JSON of
one message; whatever is longer than a megabyte, of another version or not one of these messages is refused. Batches
never travel in messages: they lie in the store.
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
    """First word of every connection."""

    kind: Literal["hello"] = "hello"
    token: Secret = Field(repr=False)
    role: Literal["job", "producer", "viewer"]
    name: Name


class Welcome(Message):
    kind: Literal["welcome"] = "welcome"
    store: Annotated[str, Field(max_length=1000)]
    """Where batches are: a folder of mapped files, or the address of a Redis."""
    store_password: Secret | None = Field(None, repr=False)
    """Of the Redis. Said only where nobody listens: over TLS, on loopback, on a unix socket."""


class Equip(Message):
    """First word to a producer process: by its socket, since command lines are read by every user of a machine."""

    kind: Literal["equip"] = "equip"
    store: Annotated[str, Field(max_length=1000)]
    token: Secret = Field(repr=False)
    store_password: Secret | None = Field(None, repr=False)
    tls_ca: str | None = None


class Refused(Message):
    """The answer to what cannot be done. `stop`: the job must not go on either."""

    kind: Literal["refused"] = "refused"
    reason: Reason
    stop: bool = False


class Register(Message):
    """A job and the stream of batches it will read: positions from `position` to before `last`."""

    kind: Literal["register"] = "register"
    stream: Digest
    spec: StreamSpec
    batches_per_epoch: Annotated[int, Field(ge=1, le=1 << 40)]
    batch_bytes: Annotated[int, Field(ge=1, le=1 << 36)]
    position: Count
    last: Count | None = None
    epoch: Count = 0
    index: Count = 0
    """The batch that position 0 stands for."""
    anywhere: bool = False
    """May start where other jobs are, and finish at the end of each epoch what it missed at its start."""
    epochs_differ: bool = False
    """The shape of batches depends on the epoch, so that one epoch cannot stand for another."""


class Registered(Message):
    kind: Literal["registered"] = "registered"
    epoch: Count
    index: Count
    """The batch that position 0 stands for: as registered, or where the others are."""
    jobs: Count
    note: Reason | None = None


class Next(Message):
    """A job needs the batch at `position`, and can take up to `count`; the answer is held back up to `wait_seconds`."""

    kind: Literal["next"] = "next"
    position: Count
    count: Annotated[int, Field(ge=1, le=64)] = 1
    wait_seconds: Annotated[float, Field(ge=0, le=60)] = 0.0
    released: Annotated[list[Count], Field(max_length=10_000)] = []
    """Buffers whose arrays are gone."""
    step_seconds: Seconds | None = None


class Batches(Message):
    """What is ready, from the wanted position on; none when the time was over. `denied`: make it yourself, and why."""

    kind: Literal["batches"] = "batches"
    position: Count = 0
    buffers: Annotated[list[Count], Field(max_length=64)] = []
    """Where they are: that of `position`, and those that follow it."""
    denied: Reason | None = None
    jobs: Count = 1
    """Jobs that read this stream now."""
    share_seconds: Seconds = 0.0
    """This job's part of the coordinator's time so far, shared equally among the jobs that were there."""
    share_byte_seconds: Annotated[float, Field(ge=0)] = 0.0
    """Its part of what the cache held."""
    share_gb_seconds: Annotated[float, Field(ge=0)] = 0.0
    share_requests: Annotated[float, Field(ge=0)] = 0.0
    """Its part of what functions took: of each batch, shared equally among the readers of the stream."""
    busy: bool = False
    """No producer was free, besides the one that may have just made this."""
    made: Count = 0
    evicted_needed: Count = 0
    cold_starts: Count = 0
    """All three by the whole service, since this job joined."""


class Claim(Message):
    """A job makes a batch itself and offers to write it where others find it."""

    kind: Literal["claim"] = "claim"
    position: Count


class Claimed(Message):
    """Write into this buffer, or (none) do not bother: it is there, or somebody makes it, or there is no room."""

    kind: Literal["claimed"] = "claimed"
    lease: Count | None = None
    buffer: Count | None = None
    bytes: Count = 0
    epoch: Count = 0
    index: Count = 0


class Produce(Message):
    """An order to a producer, which has the spec from the first order of a stream."""

    kind: Literal["produce"] = "produce"
    lease: Count
    stream: Digest
    spec: StreamSpec | None = None
    epoch: Count
    index: Count
    buffer: Count
    bytes: Count


class Done(Message):
    """Written. Nobody believes it before the coordinator has looked."""

    kind: Literal["done"] = "done"
    lease: Count
    bytes: Count
    seconds: Seconds
    cold: bool = False
    gb_seconds: Seconds = 0.0


class Failed(Message):
    """A lease that came to nothing. `stream_is`: no batch of this stream can be made, or its data is not the job's."""

    kind: Literal["failed"] = "failed"
    lease: Count
    reason: Reason
    stream_is: Literal["fine", "unavailable", "another"] = "fine"


class Spoilt(Message):
    """A job found a ready batch that does not match its checksum or is gone."""

    kind: Literal["spoilt"] = "spoilt"
    position: Count
    buffer: Count


class Leave(Message):
    kind: Literal["leave"] = "leave"


class Lost(Message):
    """Said by the transport: a job or producer is gone without a word."""

    kind: Literal["lost"] = "lost"
    reason: Reason = ""


class Joined(Message):
    """A producer that takes so many orders at once is there; 0 while it starts."""

    kind: Literal["joined"] = "joined"
    slots: Annotated[int, Field(ge=0, le=10_000)]
    spare: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Orders that it takes beyond these, so that it can answer several at once."""
    usd_per_second: Seconds = 0.0
    seconds_to_start: Seconds = 0.0


class Tick(Message):
    kind: Literal["tick"] = "tick"


class Ask(Message):
    """A look from outside, or the wish to empty the cache."""

    kind: Literal["ask"] = "ask"
    what: Literal["status", "clear", "stop"] = "status"


class Status(Message):
    kind: Literal["status"] = "status"
    values: dict[str, Any]


AnyMessage = (
    Hello | Welcome | Refused | Register | Registered | Next | Batches | Claim | Claimed | Produce | Done | Failed
    | Spoilt | Leave | Lost | Joined | Tick | Ask | Status | Equip
)  # fmt: skip
_ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(Annotated[AnyMessage, Field(discriminator="kind")])


def encode(message: Message) -> bytes:
    body = message.model_dump_json().encode()
    if len(body) > MOST_BYTES:
        raise ServiceUnavailable(
            f"a {message.__class__.__name__} of {len(body)} bytes is over the {MOST_BYTES} allowed"
        )
    return FRAME.pack(_MAGIC, VERSION, len(body)) + body


def body_bytes(frame_header: bytes) -> int:
    """Length of the JSON that follows."""
    magic, version, count = FRAME.unpack(frame_header)
    if magic != _MAGIC:
        raise ServiceUnavailable("the other side does not speak flatout's protocol of shared batches")
    if version != VERSION:
        raise ServiceUnavailable(f"the other side speaks version {version} of the protocol, this is {VERSION}; "
                                 "use the same version of flatout everywhere")  # fmt: skip
    if count > MOST_BYTES:
        raise ServiceUnavailable(f"a message of {count} bytes is over the {MOST_BYTES} allowed")
    return int(count)


def decode_body(body: bytes) -> AnyMessage:
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ServiceUnavailable(f"a message makes no sense: {first['msg']} at {first['loc']}") from None


def decode(frame: bytes) -> AnyMessage:
    if len(frame) < FRAME.size or len(frame) != FRAME.size + body_bytes(frame[: FRAME.size]):
        raise ServiceUnavailable(f"a frame of {len(frame)} bytes is not whole")
    return decode_body(frame[FRAME.size :])
