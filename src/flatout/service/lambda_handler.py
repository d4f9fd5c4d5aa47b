"""The AWS Lambda function that makes batches: `flatout.service.lambda_handler.handler`.

A function's answer is limited to 6 MB, so a batch goes straight into the Redis that the event names; without one, a
small batch comes back in the answer. Packaging and deployment: docs/shared-batches.md.
"""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from flatout.errors import FlatoutError
from flatout.service.functions import Made, prepare_bytes
from flatout.service.specs import AnotherDataset, batch_key, stream_name

_VERSION = 1
_MOST_ANSWER_BYTES = 4_500_000  # of the 6 MB, in base64


def make_event(spec: Mapping[str, Any], epoch: int, index: int, most_bytes: int, redis: str | None) -> bytes:
    event = {"version": _VERSION, "spec": spec, "epoch": epoch, "index": index, "bytes": most_bytes, "redis": redis}
    return json.dumps(event).encode()


def handler(event: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Make one batch. Errors are answers, so that the coordinator hears the reason and not a stack trace."""
    began = time.perf_counter()
    try:
        if event.get("version") != _VERSION:
            raise FlatoutError(f"the function speaks version {_VERSION}, the event is of {event.get('version')!r}")
        made = prepare_bytes(event["spec"], event["epoch"], event["index"], event["bytes"])
        answer: dict[str, Any] = {"bytes": made.bytes, "cold": made.cold}
        if event["redis"] is not None:
            from flatout.cache.redis_store import RedisStore

            key = batch_key(stream_name(event["spec"]), event["epoch"], event["index"])
            RedisStore(event["redis"]).commit(0, key, memoryview(made.data), made.bytes)
        elif made.bytes > _MOST_ANSWER_BYTES:
            raise FlatoutError(f"a batch of {made.bytes} bytes is too large for a function's answer; use a Redis")
        else:
            answer["data"] = base64.b64encode(made.data).decode("ascii")
    except AnotherDataset as error:
        answer = {"error": str(error), "another": True}
    except (FlatoutError, OSError, KeyError, ValueError, TypeError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    return {**answer, "seconds": time.perf_counter() - began}


def read_answer(body: bytes, memory_gb: float) -> Made:
    answer = json.loads(body)
    if "error" in answer or "bytes" not in answer:
        kind = AnotherDataset if answer.get("another") else FlatoutError
        raise kind(str(answer.get("error") or answer.get("errorMessage") or "the function gave no answer")[:2000])
    data = base64.b64decode(answer["data"]) if "data" in answer else None
    return Made(data, int(answer["bytes"]), bool(answer["cold"]), float(answer["seconds"]) * memory_gb)
