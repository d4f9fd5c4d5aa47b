"""A batch that this job makes itself, written to the store so that others find it."""

import time

from flatout.cache.batch_store import BatchStore
from flatout.cache.bundle import SUM_EVERY, read_bundle
from flatout.data.batch import Prepared
from flatout.data.loading.prepare import BatchPlan
from flatout.errors import FlatoutError, ServiceUnavailable
from flatout.service.client.batches import StreamOrder
from flatout.service.client.session import ANSWER_SECONDS, ServiceConnection
from flatout.service.producers.producer import make_batch
from flatout.service.protocol.messages import Claim, Claimed, Done, Failed
from flatout.service.protocol.specs import ImagePreparer, assemble


def make_and_write_back(
    plan: BatchPlan, order: StreamOrder, connection: ServiceConnection, store: BatchStore, position: int
) -> Prepared | None:
    """None where the service has no use for the batch, or it could not be written."""
    claimed = connection.ask(Claim(position=position), ANSWER_SECONDS)
    if not isinstance(claimed, Claimed) or claimed.lease is None or claimed.buffer is None:
        return None
    if claimed.bytes > order.register.batch_bytes:
        raise ServiceUnavailable(f"the service offers a buffer of {claimed.bytes} bytes, larger than any batch")
    key = order.at(position)
    name, began = order.name(key), time.perf_counter()
    try:
        space = store.space(claimed.buffer, claimed.bytes)
        count = make_batch(ImagePreparer(plan, None, 1), *key, space, name, SUM_EVERY)
        store.commit(claimed.buffer, name, space, count)
    except FlatoutError as error:
        connection.send(Failed(lease=claimed.lease, reason=str(error)[:2000]))
        return None
    bundle = read_bundle(space, name, verify=False)
    copies = {array: values.copy() for array, values in bundle.arrays.items()}  # after Done the buffer is others' too
    connection.send(Done(lease=claimed.lease, bytes=count, seconds=time.perf_counter() - began))
    return assemble(*key, copies, bundle.meta)
