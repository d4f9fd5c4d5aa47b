"""Who may ask what: pure decisions on a request, made before anything is read.

Looking from this machine needs no token; anything else does, and so does every act. A browser must not be a way in:
the Host must be one of ours (a name that an attacker points at 127.0.0.1 is not), requests that another site makes are
refused, and a cookie counts only with the Origin of this page."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

LOOPBACK = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors "
)
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:*"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """`hosts` are the names under which this server may be asked for, without a port."""

    token: str
    hosts: tuple[str, ...]
    on_loopback: bool
    cookie: str
    """Its name: two dashboards on one machine do not overwrite each other's."""
    framed: bool = False
    """Whether pages that this machine serves may show it in a frame."""

    @property
    def headers(self) -> dict[str, str]:
        """Of every answer."""
        return {**HEADERS, "Content-Security-Policy": POLICY + (_NOTEBOOKS if self.framed else "'none'")}

    def is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def refusal(self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and reason; None where the request may go on. `headers` have lower-case names."""
        host = host_name(headers.get("host", ""))
        if host not in self.hosts:
            return 421, f"this dashboard does not answer for the host {host!r}; start it with --allow-host {host}"
        leads_here = headers.get("sec-fetch-mode") == "navigate" and method == "GET"  # a link on another site
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not leads_here:
            return 403, "another site may not ask this dashboard"
        acts, by_header = method not in ("GET", "HEAD"), self.is_token(_bearer(headers))
        by_cookie = self.is_token(cookies.get(self.cookie))
        if acts and by_cookie and not by_header and not _same_origin(headers):
            return 403, "the request does not come from this dashboard's own page"
        if (acts or not self.on_loopback) and not (by_cookie or by_header):
            return 401, "open the address with its token, as `flatout dashboard` printed it"
        return None


def host_name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _bearer(headers: Mapping[str, str]) -> str | None:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _same_origin(headers: Mapping[str, str]) -> bool:
    scheme, _, rest = headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and bool(rest) and rest == headers.get("host")
