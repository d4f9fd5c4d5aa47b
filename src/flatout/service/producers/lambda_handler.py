"""The AWS Lambda function that makes batches: `flatout.service.producers.lambda_handler.handler`.

A function's answer is limited to 6 MB, so it writes the batch to the Redis that the event names; without one, a small
batch is part of the answer. The event holds the key that seals this one batch; the password of the Redis is in the
function's environment. Packaging and deployment: docs/shared-batches.md.
"""

import base64
import json
import os
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flatout.cache.redis_address import parse_redis, redis_password
from flatout.cache.redis_store import RedisStore
from flatout.cache.sealing import entry_keys
from flatout.errors import FlatoutError
from flatout.service.producers.functions import Made, prepare_bytes
from flatout.service.protocol.specs import AnotherDataset, batch_key, stream_name
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.transport.stores import StoreAccess

_VERSION = 2
_CA_VARIABLE = "FLATOUT_TLS_CA"
_MOST_ANSWER_BYTES = 4_500_000  # of the 6 MB, in base64


def make_event(spec: StreamSpec, epoch: int, index: int, most_bytes: int, access: StoreAccess | None) -> bytes:
    """What the service invokes the function with; without access to a Redis, the batch is part of the answer."""
    event: dict[str, Any] = {"version": _VERSION, "spec": spec.model_dump(), "redis": None}
    event |= {"epoch": epoch, "index": index, "bytes": most_bytes}
    if access is not None and "://" in access.address:
        key = batch_key(stream_name(spec), epoch, index)
        event |= {"redis": access.address, "entry_key": entry_keys(access.token)(key).hex()}
    return json.dumps(event).encode()


def handler(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Make one batch. Errors are answers, so that the coordinator gets the reason and not a stack trace."""
    began = time.perf_counter()
    try:
        if event.get("version") != _VERSION:
            raise FlatoutError(f"the function speaks version {_VERSION}, the event is of {event.get('version')!r}")
        spec = StreamSpec.model_validate_json(json.dumps(event["spec"]))
        made = prepare_bytes(spec, event["epoch"], event["index"], event["bytes"])
        answer: dict[str, Any] = {"bytes": made.bytes, "cold": made.cold}
        if event["redis"] is not None:
            key = batch_key(stream_name(spec), event["epoch"], event["index"])
            with closing(_store(event)) as store:
                store.commit(0, key, memoryview(made.data), made.bytes)
        elif made.bytes > _MOST_ANSWER_BYTES:
            raise FlatoutError(f"a batch of {made.bytes} bytes is too large for a function's answer; use a Redis")
        else:
            answer["data"] = base64.b64encode(made.data).decode("ascii")
    except AnotherDataset as error:
        answer = {"error": str(error), "another": True}
    except (FlatoutError, OSError, KeyError, ValueError, TypeError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    return {**answer, "seconds": time.perf_counter() - began}


def _store(event: Mapping[str, Any]) -> RedisStore:
    entry_key, ca = bytes.fromhex(event["entry_key"]), os.environ.get(_CA_VARIABLE)
    address = parse_redis(event["redis"], redis_password(None), None if ca is None else Path(ca))
    return RedisStore(address, lambda _: entry_key)


def read_answer(body: bytes, memory_gb: float) -> Made:
    """From what `handler` returned; its errors are raised here."""
    answer = json.loads(body)
    if "error" in answer or "bytes" not in answer:
        kind = AnotherDataset if answer.get("another") else FlatoutError
        raise kind(str(answer.get("error") or answer.get("errorMessage") or "the function gave no answer")[:2000])
    data = base64.b64decode(answer["data"]) if "data" in answer else None
    return Made(data, int(answer["bytes"]), bool(answer["cold"]), float(answer["seconds"]) * memory_gb)
