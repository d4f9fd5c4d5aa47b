"""Messages: what is encoded is decoded, and whatever else arrives is refused with a reason."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.errors import ServiceUnavailable
from flatout.service.protocol.messages import (
    FRAME,
    MOST_BYTES,
    VERSION,
    Batches,
    Equip,
    Hello,
    Next,
    Register,
    Welcome,
    decode,
    encode,
)
from flatout.simulation.simulator import SIMULATED_SPEC


def test_round_trip() -> None:
    for message in (
        Next(position=3, count=4, wait_seconds=0.5, released=[1, 2], step_seconds=0.25),
        Batches(position=3, buffers=[9], share_seconds=1.5),
        Register(stream="a" * 64, spec=SIMULATED_SPEC, batches_per_epoch=4, batch_bytes=100, position=0),
    ):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "nonsense"}, "tag"),
        ({"position": -1}, "position"),
        ({"position": "3"}, "position"),
        ({"extra": 1}, "extra"),
        ({"count": 10**9}, "count"),
        ({"released": [0] * 20_000}, "released"),
        ({"step_seconds": float("nan")}, "makes no sense"),
    ],
)
def test_a_wrong_field_is_refused(changes: dict[str, object], says: str) -> None:
    body = json.dumps({**Next(position=3).model_dump(), **changes}).encode()
    with pytest.raises(ServiceUnavailable, match=says):
        decode(FRAME.pack(b"FOs", VERSION, len(body)) + body)


def test_another_protocol_version_or_size_is_refused() -> None:
    body = encode(Next(position=3))[FRAME.size :]
    for header, says in (
        (FRAME.pack(b"GET", VERSION, len(body)), "does not speak"),
        (FRAME.pack(b"FOs", VERSION + 1, len(body)), f"version {VERSION + 1}"),
        (FRAME.pack(b"FOs", VERSION, MOST_BYTES + 1), "over the"),
        (FRAME.pack(b"FOs", VERSION, len(body) + 1), "not whole"),
    ):
        with pytest.raises(ServiceUnavailable, match=says):
            decode(header + body)
    too_long = SIMULATED_SPEC.model_copy(update={"content": "y" * MOST_BYTES})
    with pytest.raises(ServiceUnavailable, match="over the"):
        encode(Register(stream="a" * 64, spec=too_long, batches_per_epoch=4, batch_bytes=1, position=0))


REGISTER = Register(stream="a" * 64, spec=SIMULATED_SPEC, batches_per_epoch=4, batch_bytes=100, position=0)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("extra", 1),
        ("kind", "images"),
        ("content", "same"),
        ("content", "g" * 64),
        ("view", "../../etc"),
        ("seed", 1 << 64),
        ("seed", "0"),
        ("batch_size", 0),
        ("batch_size", 1 << 40),
        ("batch_size", 1.5),
        ("split", "test"),
        ("raw_shape", [1 << 30, 1]),
        ("rank", -1),
        ("world_size", 0),
        ("shuffle", 1),
        ("data", None),
        ("data.path", ""),
        ("data.path", "x" * 5000),
        ("data.path", ["/etc"]),
        ("data.extra", 1),
        ("data.classes", ["x"] * 100_001),
        ("data.cache", "everything"),
        ("data.holdout", 1.0),
        ("view_values.size", 1 << 20),
        ("view_values.sizes", [[0, 64]] * 1001),
        ("view_values.crop", "none"),
        ("view_values.scale", [0.1]),
        ("view_values.ratio", [0.0, 1.0]),
        ("view_values.mean", "000"),
        ("view_values.pad", 1 << 30),
        ("view_values.mixup", float("inf")),
        ("view_values.__class__", "View"),
    ],
)
def test_a_spec_beyond_its_limits_is_refused(where: str, value: object) -> None:
    said = json.loads(REGISTER.model_dump_json())
    *above, name = ["spec", *where.split(".")]
    inner = said
    for each in above:
        inner = inner[each]
    inner[name] = value
    body = json.dumps(said).encode()
    with pytest.raises(ServiceUnavailable, match="makes no sense"):
        decode(FRAME.pack(b"FOs", VERSION, len(body)) + body)


def test_secrets_are_not_shown() -> None:
    for message in (
        Hello(token="canary", role="job", name="x"),
        Welcome(store="redis://cache", store_password="canary"),
        Equip(store="redis://cache", token="canary", store_password="canary"),
    ):
        assert "canary" not in repr(message) + str(message)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    for frame in (noise, FRAME.pack(b"FOs", VERSION, len(noise)) + noise):
        with pytest.raises(ServiceUnavailable):
            decode(frame)
