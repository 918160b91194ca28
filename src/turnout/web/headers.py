"""Security headers of every response, and the size of the headers of a request."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Scope

from turnout.web.connections import Limits
from turnout.web.errors import error_response

#: Plotly needs inline styles; inline scripts are forbidden.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def add_security_headers(message: Message) -> None:
    """Adds the security headers to the start of a response; other messages are left as they are."""
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers[name] = value
        headers.setdefault("cache-control", "no-store")


def refuse_large_headers(scope: Scope, limits: Limits) -> Response | None:
    """Returns the response to a request whose address and headers exceed the limits; None if they do not."""
    raw = Headers(scope=scope).raw
    size = sum(len(name) + len(value) for name, value in raw)
    size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size <= limits.header_bytes and len(raw) <= limits.headers:
        return None
    message = f"a request must have at most {limits.headers} headers and {limits.header_bytes:,} bytes: remove cookies"
    return error_response(message, 431, {"connection": "close"})
