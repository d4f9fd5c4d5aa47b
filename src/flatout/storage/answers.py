"""Read what obstore raised into an outcome, and an outcome into one line for the user.

obstore's own text is never passed on: it is long, and on Azure the address in it can carry a signature.
"""

import re
from dataclasses import dataclass

from flatout.errors import AccessDenied, ObjectMissing, StorageError, StoreUnreachable
from flatout.storage.retry import RequestOutcome
from flatout.units import format_seconds

_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_REGION = re.compile(r"expecting '?([a-z0-9-]+)'?|<Region>([a-z0-9-]+)</Region>")
_KEY = re.compile(r'Path "(.*?)"', re.DOTALL)
_CREDENTIAL_SOURCES = (
    "/latest/api/token",
    "/latest/meta-data/",
    "metadata.google.internal",
    "/metadata/identity",
    "WebIdentity",
    "Missing AccessKey",
    "Missing SecretAccessKey",
    "ContainerCredentials",
    "oauth2",
    "External AWS credential provider",
)
_BY_CODE = {
    "ExpiredToken": RequestOutcome.EXPIRED,
    "TokenRefreshRequired": RequestOutcome.EXPIRED,
    "NoSuchBucket": RequestOutcome.NO_BUCKET,
    "ContainerNotFound": RequestOutcome.NO_BUCKET,
    "AuthorizationHeaderMalformed": RequestOutcome.WRONG_REGION,
    "PermanentRedirect": RequestOutcome.WRONG_REGION,
    "IllegalLocationConstraintException": RequestOutcome.WRONG_REGION,
    "SlowDown": RequestOutcome.THROTTLED,
    "ServerBusy": RequestOutcome.THROTTLED,
    "RequestTimeTooSkewed": RequestOutcome.REFUSED,
    "RequestTimeout": RequestOutcome.UNREACHABLE,
}
_BY_STATUS = {
    "404": RequestOutcome.MISSING,
    "401": RequestOutcome.DENIED,
    "403": RequestOutcome.DENIED,
    "416": RequestOutcome.BAD_RANGE,
    "429": RequestOutcome.THROTTLED,
    "503": RequestOutcome.THROTTLED,
    "408": RequestOutcome.UNREACHABLE,
    "301": RequestOutcome.WRONG_REGION,
}
_BY_TEXT = (
    ("Received redirect without LOCATION", RequestOutcome.WRONG_REGION, "redirected elsewhere"),
    ("Received non-partial response", RequestOutcome.NOT_PARTIAL, "the server ignores ranges"),
    ("Range started at", RequestOutcome.BAD_RANGE, "empty range"),
    ("invalid peer certificate", RequestOutcome.REFUSED, "its TLS certificate is not trusted"),
    (
        "URL scheme is not allowed",
        RequestOutcome.REFUSED,
        "plain http is allowed to loopback only, or with allow_http=true",
    ),
    ("BadScheme", RequestOutcome.REFUSED, "plain http is allowed to loopback only, or with allow_http=true"),
    ("IncompleteBody", RequestOutcome.DAMAGED, "the answer was cut short"),
    ("IncompleteMessage", RequestOutcome.UNREACHABLE, "disconnected"),
    ("ConnectionRefused", RequestOutcome.UNREACHABLE, "connection refused"),
    ("ConnectionReset", RequestOutcome.UNREACHABLE, "connection reset"),
    ("dns error", RequestOutcome.UNREACHABLE, "host name not found"),
    ("TimedOut", RequestOutcome.UNREACHABLE, "timed out"),
    ("HTTP error", RequestOutcome.UNREACHABLE, "disconnected"),
    ("response body", RequestOutcome.UNREACHABLE, "disconnected"),
    ("Could not parse path", RequestOutcome.REFUSED, "an object of that name cannot be addressed"),
    ("Encountered illegal character", RequestOutcome.REFUSED, "a key holds a control character"),
    ("contained empty path segment", RequestOutcome.REFUSED, "a key holds an empty folder name, //"),
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why one request did not give the bytes asked for. `detail` holds no address and no secret."""

    outcome: RequestOutcome
    detail: str


def read_trouble(error_type: str, text: str) -> Trouble:
    """What an exception of obstore means."""
    if error_type == "UnicodeEncodeError":
        return Trouble(RequestOutcome.MISSING, "object names are UTF-8 and this one is not")
    if any(source in text for source in _CREDENTIAL_SOURCES):
        return Trouble(RequestOutcome.NO_CREDENTIALS, "no credentials found")
    code, status = _CODE.search(text), _STATUS.search(text)
    if code or status:
        return _read_answer(code.group(1) if code else "", status.group(1) if status else "", text)
    for part, outcome, detail in _BY_TEXT:
        if part in text:
            key = _KEY.search(text)
            return Trouble(outcome, f"{detail}: {key.group(1)!r}" if key else detail)
    by_type = {"FileNotFoundError": RequestOutcome.MISSING, "PermissionDeniedError": RequestOutcome.DENIED}
    return Trouble(by_type.get(error_type, RequestOutcome.REFUSED), error_type)


def _read_answer(code: str, status: str, text: str) -> Trouble:
    detail = f"{status} {code}".strip()
    outcome = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if outcome is None:
        outcome = RequestOutcome.UNREACHABLE if status.startswith("5") else RequestOutcome.REFUSED
    if outcome is RequestOutcome.WRONG_REGION and (region := _REGION.search(text)):
        detail += f", the bucket is in {region.group(1) or region.group(2)}"
    if code == "RequestTimeTooSkewed":
        detail += ", this machine's clock is wrong"
    return Trouble(outcome, detail)


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a request went, for messages."""

    url: str
    endpoint: str
    credentials_hint: str

    def bucket(self) -> str:
        return "/".join(self.url.split("/")[:3])


def explain(
    trouble: Trouble, place: StoreLocation, name: str | None = None, asked_seconds: float = 0.0
) -> StorageError:
    """One line: what happened, what was seen, what to do. The name is quoted, since a name may hold a newline."""
    what = f"{place.url}: {name!r}" if name is not None else place.url
    seen = f"({trouble.detail})"
    match trouble.outcome:
        case RequestOutcome.MISSING:
            return ObjectMissing(f"{what} does not exist {seen}; check the name, or list the store again if it changed")
        case RequestOutcome.NO_BUCKET:
            return ObjectMissing(
                f"bucket {place.bucket()} does not exist at {place.endpoint} {seen}; check its name and the endpoint"
            )
        case RequestOutcome.DENIED:
            return AccessDenied(f"{what}: access denied {seen} at {place.endpoint}; check {place.credentials_hint}")
        case RequestOutcome.EXPIRED:
            return AccessDenied(
                f"{what}: the credentials have expired {seen}, reading them again did not help; "
                f"renew {place.credentials_hint}"
            )
        case RequestOutcome.NO_CREDENTIALS:
            return AccessDenied(
                f"{what}: no credentials found; set {place.credentials_hint}, "
                "or skip_signature=true for a public bucket"
            )
        case RequestOutcome.WRONG_REGION:
            return StorageError(f"{place.url}: wrong region {seen}; set AWS_REGION to the bucket's region")
        case RequestOutcome.THROTTLED | RequestOutcome.UNREACHABLE:
            return StoreUnreachable(
                f"{what}: no usable answer from {place.endpoint} within {format_seconds(asked_seconds)} {seen}; "
                "check the endpoint and the network, or raise deadline_seconds"
            )
        case RequestOutcome.DAMAGED:
            return StorageError(f"{what}: every answer was damaged {seen}; the object or the path to it is broken")
        case _:
            return StorageError(f"{what}: {place.endpoint} refused {seen}; this will not change by asking again")
