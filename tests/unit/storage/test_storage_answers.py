"""obstore's exceptions, as collected from version 0.12 against a real server and a misbehaving proxy."""

import pytest

from flatout.errors import AccessDenied, ObjectMissing, StorageError, StoreUnreachable
from flatout.storage.answers import StoreLocation, Trouble, explain, read_trouble
from flatout.storage.retry import RequestOutcome

GET = "Generic S3 error: Error performing GET http://127.0.0.1:1/b/a.jpg in 1ms - "
STATUS = GET + "Server returned non-2xx status code: "
SENDING = GET + "HTTP error: error sending request\n\nDebug source: "
BODY = "Generic S3 error: HTTP error: request or response body error\n\nDebug source: "
PLACE = StoreLocation("s3://bucket/train", "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")

CASES = [
    ("GenericError", STATUS + "503 Service Unavailable: <Error><Code>SlowDown</Code></Error>", RequestOutcome.THROTTLED),
    ("GenericError", STATUS + "503 Service Unavailable: ", RequestOutcome.THROTTLED),
    ("GenericError", STATUS + "429 Too Many Requests: ", RequestOutcome.THROTTLED),
    ("GenericError", STATUS + "500 Internal Server Error: <Code>InternalError</Code>", RequestOutcome.UNREACHABLE),
    ("GenericError", STATUS + "502 Bad Gateway: ", RequestOutcome.UNREACHABLE),
    ("GenericError", STATUS + "400 Bad Request: <Error><Code>RequestTimeout</Code></Error>", RequestOutcome.UNREACHABLE),
    ("FileNotFoundError", STATUS + "404 Not Found: <Error>\n  <Code>NoSuchKey</Code></Error>", RequestOutcome.MISSING),
    ("FileNotFoundError", STATUS + "404 Not Found: ", RequestOutcome.MISSING),
    ("FileNotFoundError", STATUS + "404 Not Found: <Error><Code>NoSuchBucket</Code></Error>", RequestOutcome.NO_BUCKET),
    ("PermissionDeniedError", STATUS + "403 Forbidden: <Error><Code>AccessDenied</Code></Error>", RequestOutcome.DENIED),
    ("PermissionDeniedError", STATUS + "403 Forbidden: <Error><Code>ExpiredToken</Code></Error>", RequestOutcome.EXPIRED),
    ("UnauthenticatedError", STATUS + "401 Unauthorized: ", RequestOutcome.DENIED),
    ("GenericError", STATUS + "400 Bad Request: <Error><Code>ExpiredToken</Code></Error>", RequestOutcome.EXPIRED),
    ("GenericError", STATUS + "400 Bad Request: <Error><Code>InvalidArgument</Code></Error>", RequestOutcome.REFUSED),
    ("GenericError", STATUS + "416 Range Not Satisfiable: <Error><Code>InvalidRange</Code></Error>", RequestOutcome.BAD_RANGE),
    ("GenericError", GET + "Received redirect without LOCATION, this normally indicates", RequestOutcome.WRONG_REGION),
    ("GenericError", "Generic S3 error: Received non-partial response when range requested", RequestOutcome.NOT_PARTIAL),
    ("GenericError", SENDING + "kind: ConnectionRefused", RequestOutcome.UNREACHABLE),
    ("GenericError", SENDING + "kind: Timeout, source: TimedOut", RequestOutcome.UNREACHABLE),
    ("GenericError", SENDING + "something new", RequestOutcome.UNREACHABLE),
    ("GenericError", BODY + "kind: UnexpectedEof, error: IncompleteBody", RequestOutcome.DAMAGED),
    ("GenericError", BODY + "kind: ConnectionReset", RequestOutcome.UNREACHABLE),
    ("GenericError", "performing PUT http://169.254.169.254/latest/api/token in 1s", RequestOutcome.NO_CREDENTIALS),
    ("GenericError", "Generic S3 error: Missing SecretAccessKey", RequestOutcome.NO_CREDENTIALS),
    ("UnicodeEncodeError", "'utf-8' codec can't encode", RequestOutcome.MISSING),
    ("ValueError", 'Could not parse path: Path "a//b" contained empty path segment', RequestOutcome.REFUSED),
    ("PanicException", "request valid: InvalidUri", RequestOutcome.REFUSED),
    ("SomethingNew", "of an unknown kind", RequestOutcome.REFUSED),
]  # fmt: skip


@pytest.mark.parametrize(("error_type", "text", "outcome"), CASES)
def test_exceptions_are_read(error_type: str, text: str, outcome: RequestOutcome) -> None:
    assert read_trouble(error_type, text).outcome is outcome


@pytest.mark.parametrize("text", [text for _, text, _ in CASES])
def test_no_address_reaches_a_message(text: str) -> None:
    trouble = read_trouble("GenericError", text.replace("a.jpg", "a.jpg?sig=canary"))
    assert "canary" not in str(explain(trouble, PLACE, "a.jpg", 3.0))


@pytest.mark.parametrize("outcome", list(RequestOutcome))
@pytest.mark.parametrize("name", [None, "a\nb.jpg", "bad\udcff"])
def test_messages_are_one_printable_line(outcome: RequestOutcome, name: str | None) -> None:
    message = str(explain(Trouble(outcome, "503 SlowDown"), PLACE, name, 3.0))
    assert "\n" not in message
    message.encode()
    assert "s3://bucket" in message


def test_outcomes_become_errors_of_their_kind() -> None:
    kinds = {
        RequestOutcome.MISSING: ObjectMissing, RequestOutcome.NO_BUCKET: ObjectMissing, RequestOutcome.DENIED: AccessDenied,
        RequestOutcome.EXPIRED: AccessDenied, RequestOutcome.NO_CREDENTIALS: AccessDenied, RequestOutcome.THROTTLED: StoreUnreachable,
        RequestOutcome.UNREACHABLE: StoreUnreachable, RequestOutcome.DAMAGED: StorageError, RequestOutcome.WRONG_REGION: StorageError,
    }  # fmt: skip
    for outcome, kind in kinds.items():
        assert type(explain(Trouble(outcome, "detail"), PLACE, "a.jpg")) is kind


def test_the_right_region_is_named() -> None:
    body = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting 'eu-west-1'</Message></Error>"
    trouble = read_trouble("GenericError", STATUS + "400 Bad Request: " + body)
    assert trouble.outcome is RequestOutcome.WRONG_REGION
    assert "eu-west-1" in trouble.detail
