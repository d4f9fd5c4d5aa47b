"""Calls the AWS Lambda function of lambda_handler.py for every batch."""

from flatout.service.producers.functions import Made
from flatout.service.producers.lambda_handler import make_event, read_answer
from flatout.service.protocol.extras import needs
from flatout.service.protocol.messages import Produce
from flatout.service.protocol.stream_spec import StreamSpec
from flatout.service.transport.stores import StoreAccess


class LambdaCaller:
    """AWS Lambda functions with the handler of lambda_handler.py (needs the `aws` extra)."""

    def __init__(
        self,
        function: str,
        access: StoreAccess,
        slots: int = 16,
        memory_gb: float = 2.0,
        usd_per_gb_second: float = 0.0,
    ) -> None:
        with needs("aws"):
            import boto3
            from botocore.config import Config

        self.name, self.slots = f"lambda-{function}"[:200], slots
        self.usd_per_second = usd_per_gb_second * memory_gb
        self.seconds_to_start = 3.0
        self._function = function
        self._access = access
        self._memory_gb = memory_gb
        options = Config(max_pool_connections=slots, read_timeout=120, retries={"max_attempts": 1})
        self._client = boto3.client("lambda", config=options)

    def call(self, spec: StreamSpec, order: Produce) -> Made:
        event = make_event(spec, order.epoch, order.index, order.bytes, self._access)
        answer = self._client.invoke(FunctionName=self._function, Payload=event)
        return read_answer(answer["Payload"].read(), self._memory_gb)

    def close(self) -> None:
        self._client.close()
