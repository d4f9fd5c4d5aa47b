"""The service beyond one machine: the same messages over gRPC, with a token. Needs the `service` extra.

One method, bytes in and bytes out, with a deadline on every call. Each caller has a session, named in the metadata;
a session that has been silent for a while is lost, like a broken connection.
"""

import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from flatout.cache.redis_address import is_local
from flatout.errors import ConfigError, ServiceUnavailable
from flatout.service.protocol.messages import (
    MOST_BYTES,
    AnyMessage,
    Claim,
    Hello,
    Leave,
    Message,
    Next,
    Refused,
    Register,
    Status,
    Welcome,
    decode,
    encode,
)
from flatout.service.transport.server import Reception
from flatout.service.transport.stores import StoreAccess

if TYPE_CHECKING:
    from flatout.service.transport.daemon import Certificate

_TOKEN_VARIABLE = "FLATOUT_SHARED_TOKEN"  # noqa: S105 (its name)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_METHOD = "/flatout.SharedBatches/Say"
_ANSWERED = (Register, Next, Claim)  # by the coordinator; everything else is acknowledged at once
_SILENT_SECONDS = 300.0  # a long validation is no reason
_OPTIONS = [("grpc.max_receive_message_length", 2 * MOST_BYTES), ("grpc.max_send_message_length", 2 * MOST_BYTES)]


class _Session:
    def __init__(self, who: str) -> None:
        self.who = who
        self.answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.heard_at = time.monotonic()
        self.busy = threading.Lock()

    def answer(self, *messages: Message) -> None:
        for message in messages:
            self.answers.put(message)


class GrpcServer:
    """Brings gRPC calls to the reception."""

    def __init__(
        self, reception: Reception, address: str, tls: "Certificate | None" = None, most_calls: int = 256
    ) -> None:
        check_encrypted(
            address,
            tls is not None,
            f"cannot listen on {address}",
            "give --tls-cert and --tls-key, or listen on 127.0.0.1",
        )
        self._reception = reception
        self._sessions: dict[str, _Session] = {}
        self._server = grpc.server(ThreadPoolExecutor(most_calls, "flatout-grpc"), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handler(self),))
        try:
            self.port = self._add_port(address, tls)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise ConfigError(
                f"cannot listen on {address}; is the port free"
                + ("" if tls is None else f", and do {tls.chain} and {tls.key} belong together")
                + "?"
            )

    def _add_port(self, address: str, tls: "Certificate | None") -> int:
        if tls is None:
            return int(self._server.add_insecure_port(address))
        pair = (_pem(tls.key), _pem(tls.chain))
        return int(self._server.add_secure_port(address, grpc.ssl_server_credentials([pair])))

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.stop(grace=None).wait(5)

    def drop_silent(self) -> None:
        """Called a few times a second: a job that is cut off or dead says nothing."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if now - session.heard_at > _SILENT_SECONDS:
                self._end(name, "it was silent for too long")

    def say(self, request: bytes, context: Any) -> bytes:
        try:
            message = decode(request)
            name = dict(context.invocation_metadata()).get("session", "")
            session = self._sessions.get(name)
            answer = (
                self._greet(name, message)
                if isinstance(message, Hello)
                else self._hear(name, session, message, context)
            )
        except ServiceUnavailable as error:
            answer = Refused(reason=str(error)[:2000])
        return encode(answer)

    def _greet(self, name: str, message: Hello) -> Message:
        who, answer = self._reception.greet(message)
        if who and len(name) >= 32:
            session = self._sessions[name] = _Session(who)
            self._reception.coordinator.attach(who, session.answer)
            self._reception.came(who)
        return answer

    def _hear(self, name: str, session: _Session | None, message: AnyMessage, context: Any) -> Message:
        if session is None:
            return Refused(reason="this session is over or never was; say hello first")
        session.heard_at = time.monotonic()
        with session.busy:
            ready = self._reception.hear(session.who, message)
            if ready is None and isinstance(message, _ANSWERED):
                ready = self._answer(session, context)
            session.heard_at = time.monotonic()
        if isinstance(message, Leave):
            self._end(name, "")
        return ready or Status(values={})

    def _answer(self, session: _Session, context: Any) -> Message:
        try:
            return session.answers.get(timeout=max(0.1, min(context.time_remaining() or 60.0, 120.0)))
        except queue.Empty:
            return Refused(reason="no answer within the caller's deadline")

    def _end(self, name: str, reason: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._reception.went(session.who, reason, left=not reason)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._server.say) if details.method == _METHOD else None


class GrpcLine:
    """A conversation over gRPC. Opened by the process that uses it: a channel does not survive a fork."""

    def __init__(
        self, address: str, token: str, role: str, name: str, deadline_seconds: float, tls_ca: Path | None = None
    ) -> None:
        check_encrypted(
            address, tls_ca is not None, f"data.shared is grpc://{address}",
            "set data.shared_tls_ca to the file of the authority that signed its certificate",
        )  # fmt: skip
        if tls_ca is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificates=_pem(tls_ca))
            self._channel = grpc.secure_channel(address, credentials, options=_OPTIONS)
        self._call = self._channel.unary_unary(_METHOD)
        self._metadata: Iterable[tuple[str, str]] = (("session", secrets.token_hex(16)),)
        self._address = address
        try:
            answer = self.ask(Hello.model_validate({"token": token, "role": role, "name": name}), deadline_seconds)
        except ServiceUnavailable:
            self.close()
            raise
        if not isinstance(answer, Welcome):
            self.close()
            reason = answer.reason if isinstance(answer, Refused) else f"it answered with a {type(answer).__name__}"
            if isinstance(answer, Refused) and answer.stop:
                raise ConfigError(f"the service of shared batches at {address} refused this job: {reason}")
            raise ServiceUnavailable(f"the service of shared batches at {address} refused: {reason}")
        self.access = StoreAccess(answer.store, token, answer.store_password, tls_ca)

    def send(self, message: Message) -> None:
        self.ask(message, 10.0)

    def begin(self, message: Message, deadline_seconds: float) -> Callable[[], AnyMessage]:
        coming = self._call.future(encode(message), timeout=deadline_seconds, metadata=self._metadata)

        def answer() -> AnyMessage:
            try:
                return decode(coming.result())
            except grpc.RpcError as error:
                code = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
                why = (error.details() or "")[-200:] if isinstance(error, grpc.Call) else ""
                raise ServiceUnavailable(f"the service of shared batches at {self._address}: {code} {why}") from None

        return answer

    def ask(self, message: Message, deadline_seconds: float) -> AnyMessage:
        return self.begin(message, deadline_seconds)()

    def close(self) -> None:
        self._channel.close()


def check_encrypted(address: str, is_encrypted: bool, what: str, remedy: str) -> None:
    """The token, and with it whatever it protects, crosses a network only encrypted. HOST:PORT and nothing else: gRPC
    knows other forms of address, and would look a name up wherever such a form says."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"{what}, which is not HOST:PORT")
    if not is_encrypted and not is_local(found[1].strip("[]")):
        raise ConfigError(f"{what}, which is not this machine's loopback, and there is no TLS; {remedy}")


def _pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give a certificate or key in PEM") from None


def read_token(path: Path | None) -> str:
    if path is None and (given := os.environ.get(_TOKEN_VARIABLE)):
        return given.strip()
    if path is None:
        raise ConfigError(
            f"data.shared_token is not set, nor is {_TOKEN_VARIABLE}; give the file that `flatout serve --listen` has "
            "written"
        )
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from None
