"""The service beyond one machine: the same messages over gRPC, with a token. Needs the `service` extra.

One method, bytes in and bytes out, with a deadline on every call. Each caller has a session, named in the metadata of
its calls; one without calls for a while counts as lost, like a broken connection.
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

from flatout.errors import ConfigError, ServiceUnavailable
from flatout.machine.net import is_local
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
from flatout.service.transport.server import SessionRegistry
from flatout.service.transport.stores import StoreAccess

if TYPE_CHECKING:
    from flatout.service.transport.service import Certificate

_TOKEN_VARIABLE = "FLATOUT_SHARED_TOKEN"  # noqa: S105 (its name)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_METHOD = "/flatout.SharedBatches/Say"
_ANSWERED = (Register, Next, Claim)  # the coordinator answers these; the others are acknowledged at once
_SILENT_SECONDS = 300.0  # a job may validate for minutes between two calls
_OPTIONS = [("grpc.max_receive_message_length", 2 * MOST_BYTES), ("grpc.max_send_message_length", 2 * MOST_BYTES)]


class _GrpcSession:
    """Answers of the coordinator wait here for the call that fetches them."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.called_at = time.monotonic()
        self.busy = threading.Lock()

    def answer(self, *messages: Message) -> None:
        for message in messages:
            self.answers.put(message)


class GrpcServer:
    """Passes gRPC calls to the session registry; port 0 of `address` takes a free one, then in `port`."""

    def __init__(
        self, sessions: SessionRegistry, address: str, tls: "Certificate | None" = None, most_calls: int = 256
    ) -> None:
        remedy = "give --tls-cert and --tls-key, or listen on 127.0.0.1"
        check_encrypted(address, tls is not None, f"cannot listen on {address}", remedy)
        self._registry = sessions
        self._sessions: dict[str, _GrpcSession] = {}
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
        """Called several times a second: there is no connection whose end would show that a job is gone."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if now - session.called_at > _SILENT_SECONDS:
                self._end(name, "it was silent for too long")

    def say(self, request: bytes, context: Any) -> bytes:
        try:
            message = decode(request)
            name = dict(context.invocation_metadata()).get("session", "")
            session = self._sessions.get(name)
            answer = (
                self._greet(name, message)
                if isinstance(message, Hello)
                else self._receive(name, session, message, context)
            )
        except ServiceUnavailable as error:
            answer = Refused(reason=str(error)[:2000])
        return encode(answer)

    def _greet(self, name: str, message: Hello) -> Message:
        who, answer = self._registry.greet(message)
        if who and len(name) >= 32:
            session = self._sessions[name] = _GrpcSession(who)
            self._registry.coordinator.attach(who, session.answer)
            self._registry.add(who)
        return answer

    def _receive(self, name: str, session: _GrpcSession | None, message: AnyMessage, context: Any) -> Message:
        if session is None:
            return Refused(reason="this session is over or never was; say hello first")
        session.called_at = time.monotonic()
        with session.busy:
            answer = self._registry.receive(session.who, message)
            if answer is None and isinstance(message, _ANSWERED):
                answer = self._answer(session, context)
            session.called_at = time.monotonic()
        if isinstance(message, Leave):
            self._end(name, "")
        return answer or Status(values={})

    def _answer(self, session: _GrpcSession, context: Any) -> Message:
        try:
            return session.answers.get(timeout=max(0.1, min(context.time_remaining() or 60.0, 120.0)))
        except queue.Empty:
            return Refused(reason="no answer within the caller's deadline")

    def _end(self, name: str, reason: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            self._registry.remove(session.who, reason, left=not reason)


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._server.say) if details.method == _METHOD else None


class GrpcConnection:
    """A `ServiceConnection` over gRPC. Opened by the process that uses it: a channel does not survive a fork."""

    def __init__(
        self, address: str, token: str, role: str, name: str, deadline_seconds: float, tls_ca: Path | None = None
    ) -> None:
        remedy = "set data.shared_tls_ca to the file of the authority that signed its certificate"
        check_encrypted(address, tls_ca is not None, f"data.shared is grpc://{address}", remedy)
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
        pending = self._call.future(encode(message), timeout=deadline_seconds, metadata=self._metadata)

        def answer() -> AnyMessage:
            try:
                return decode(pending.result())
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
    """Refuse an address that would send the token over a network in clear.

    Only HOST:PORT is taken: gRPC knows other forms of address, which name the resolver to ask.
    """
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
