"""Checks every request before an application reads it, and adds security headers to every response."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Required, TypedDict, Unpack
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.web.access import READERS, ROLES, UNLIMITED, Access, Allowance, Caller, names_loopback
from turnout.web.errors import error_response
from turnout.web.serving import LIMITS, Limits

log = get_log("turnout.web")
JSON = "application/json"
COOKIE = "turnout_token"
READING = ("GET", "HEAD")
#: The methods that may have a body.
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
#: The status under which requests are counted whose caller has left before they were complete; nobody gets it.
CLIENT_LEFT = 499
#: Often the answer to a call with a mistyped path.
READ_ONLY = "this page is read-only: use GET or HEAD; the paths of the service begin with /v1/fleets/"
#: The key of a scope with the path under which a page is served, such as /fleets/phones; "" by default.
PREFIX = "turnout.prefix"
#: The keys of a scope with its caller, with whether the caller may still read, and with headers of the answer.
_CALLER, _IS_ALLOWED, _HEADERS = "turnout.caller", "turnout.is_allowed", "turnout.headers"
#: Plotly needs inline styles; inline scripts are forbidden.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The security headers of every response.
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
#: Lets browsers that have seen a server with TLS use nothing else for 30 days.
ONLY_TLS = "max-age=2592000"
_RAW_HEADERS = tuple((name.encode(), value.encode()) for name, value in HEADERS.items())


def caller_of(scope: Scope) -> Caller | None:
    """Returns who sent a request; None if nobody is known, which is so only for public paths."""
    caller: Caller | None = scope.get(_CALLER)
    return caller


def is_still_allowed(scope: Scope) -> bool:
    """Returns whether the token of a request still gives the same access, for answers that take long."""
    is_allowed: Callable[[], bool] = scope.get(_IS_ALLOWED, lambda: True)
    return is_allowed()


def _ignore(scope: Scope, status: int, seconds: float) -> None:
    """Does nothing at the end of a request."""


class GuardOptions(TypedDict, total=False):
    """What every guard is told.

    Attributes:
        access: Finds the caller of a request.
        public: Paths that are answered without a token, for monitors; they reveal nothing secret.
        limits: The limits of headers.
        on_end: Called with each request, the status of its answer and the seconds until the answer was complete.
    """

    access: Required[Access]
    public: Collection[str]
    limits: Limits
    on_end: Callable[[Scope, int, float], None]


class Guard(ABC):
    """ASGI middleware: checks the size of the headers, the host name and the token.

    Args:
        app: The application.
        **options: Those of GuardOptions.
    """

    def __init__(self, app: ASGIApp, **options: Unpack[GuardOptions]) -> None:
        self._app, self._access = app, options["access"]
        self._public, self._limits = options.get("public", ()), options.get("limits", LIMITS)
        self._on_end = options.get("on_end", _ignore)
        self._problem = ""  # with the tokens, as it was logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()
        is_head = scope["method"] == "HEAD"
        if is_head:  # every GET has one; the server leaves out the body
            scope = {**scope, "method": "GET"}

        async def with_headers(message: Message) -> None:
            nonlocal status
            if status and is_head:
                return
            status = status or message["status"]
            _add_security_headers(scope, message)
            await send(message)
            if is_head:  # ends streams as well
                await send({"type": "http.response.body", "body": b""})

        try:
            refusal = _refuse_malformed(scope, self._limits) or self._refuse_host(scope)
            if refusal is None:
                refusal, receive = self._admit(scope, receive)
            await (self._app if refusal is None else refusal)(scope, receive, with_headers)
        except ClientDisconnect:
            status = status or CLIENT_LEFT
        except Exception as error:
            log.error("%s failed", scope["path"], exc_info=error)
            if status:
                raise
            message = "the server failed to answer this request: see its log"
            await error_response(message, 500)(scope, receive, with_headers)
        finally:
            self._on_end(scope, status, time.perf_counter() - start)

    def _refuse_host(self, scope: Scope) -> Response | None:
        if self._access.needs_token or names_loopback(Headers(scope=scope).get("host", "")):  # prevents DNS rebinding
            return None
        message = "a server without tokens accepts only localhost or 127.0.0.1 as the host name"
        return error_response(message, 421)

    @abstractmethod
    def _admit(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Returns a refusal, or None and what reads the body of the request."""

    @abstractmethod
    def _without_access(self, scope: Scope) -> Response:
        """Returns the response to a request without a token, or with one that gives no access."""

    def _is_allowed(self, caller: Caller) -> bool:
        """Returns whether the application may be used by a caller at all."""
        return caller.role in ROLES

    def _authenticate(self, scope: Scope, *texts: str) -> Response | None:
        """Stores the caller with one of these tokens; returns a refusal if there is none and the path needs one."""
        try:
            for text in filter(None, texts) if self._access.needs_token else ("",):
                caller = self._access.caller(text)
                if caller is not None and self._is_allowed(caller):
                    scope[_CALLER], scope[_IS_ALLOWED] = caller, partial(self._is_unchanged, caller, text)
                    return None
        except StoreError as error:
            if str(error) != self._problem:  # everyone can send such requests
                log.error("tokens cannot be read: %s", error)
            self._problem = str(error)
            if scope["path"] not in self._public:
                message = "the tokens cannot be read: see the log of the server"
                return error_response(message, 503)
        return None if scope["path"] in self._public else self._without_access(scope)

    def _is_unchanged(self, caller: Caller, text: str) -> bool:
        """Returns whether a token is still that of a caller; if it cannot be read now, it was so the last time."""
        try:
            return self._access.caller(text) == caller
        except StoreError:
            return True


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest bodies of requests, in bytes: of devices, and of servers, which send the statuses of whole fleets."""

    device: int = 1 << 16
    other: int = 1 << 26

    def of(self, caller: Caller) -> int:
        """Returns the limit for a caller."""
        return self.device if caller.role == "device" else self.other


class CallGuard(Guard):
    """The guard of calls, which may change something: also checks the rate of calls, and the kind and size of bodies.

    Args:
        app: The application.
        bodies: The limits of bodies.
        count_call: Counts a call; returns whether the caller may call now.
        **options: Those of GuardOptions.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        bodies: BodyLimits | None = None,
        count_call: Callable[[Caller], Allowance] = lambda _: UNLIMITED,
        **options: Unpack[GuardOptions],
    ) -> None:
        super().__init__(app, **options)
        self._bodies, self._count_call = bodies or BodyLimits(), count_call

    def _admit(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        if scope["path"] in self._public:
            return None, receive
        refusal, caller = self._authenticate(scope, bearer_token(scope)), caller_of(scope)
        if refusal is not None or caller is None:
            return refusal, receive
        seconds, scope[_HEADERS] = self._count_call(caller)
        if seconds:
            message = "this token is used too often: wait, as Retry-After says, and send the same Idempotency-Key"
            return error_response(message, 429, {"retry-after": str(math.ceil(seconds))}), receive
        if scope["method"] not in CHANGING:
            return None, receive
        headers = Headers(scope=scope)
        # A page of another site can send other kinds of bodies, but not this one, without being allowed to first.
        if headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return error_response(f"the body must be JSON: send the header Content-Type: {JSON}", 415), receive
        largest, length = self._bodies.of(caller), headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > largest:
            return error_response(_too_large(largest), 413, {"connection": "close"}), receive
        return None, _limited(receive, largest)

    def _without_access(self, scope: Scope) -> Response:
        message, challenge = "this service needs a token: send the header Authorization: Bearer …", "Bearer"
        if bearer_token(scope):
            message = "the token is unknown, revoked or expired: ask for another one"
            challenge = 'Bearer error="invalid_token"'
        return error_response(message, 401, {"www-authenticate": challenge})


class PageGuard(Guard):
    """The guard of a page, which browsers read: the token may be a cookie, which the address with ?token= sets.

    Args:
        app: The application.
        fleet: The fleet that the page is about; None if it is about several.
        **options: Those of GuardOptions.
    """

    def __init__(self, app: ASGIApp, *, fleet: str | None = None, **options: Unpack[GuardOptions]) -> None:
        super().__init__(app, **options)
        self._fleet = fleet

    def _is_allowed(self, caller: Caller) -> bool:
        return caller.role in READERS and (self._fleet is None or caller.may_use(self._fleet))

    def _admit(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        if scope["method"] not in READING:
            return error_response(READ_ONLY, 405, {"allow": ", ".join(READING)}), receive
        sent = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        is_entry = scope["path"] == "/" and sent and self._access.needs_token
        if is_entry and self._authenticate(scope, sent) is None:
            return _set_cookie(scope, sent), receive
        cookie = cookie_parser(Headers(scope=scope).get("cookie", "")).get(_cookie_of(scope), "")
        return self._authenticate(scope, bearer_token(scope), cookie), receive

    def _without_access(self, scope: Scope) -> Response:
        message = "this dashboard needs its token: open its address with ?token="
        if scope["path"] == "/":
            return PlainTextResponse(f"{message}…\n", 401)
        return error_response(f"{message}…, or send it as a bearer token", 401)


def bearer_token(scope: Scope) -> str:
    """Returns the token in the header of a request; "" if there is none."""
    scheme, _, credentials = Headers(scope=scope).get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else ""


def _set_cookie(scope: Scope, token: str) -> Response:
    path = f"{scope.get(PREFIX, '')}/"
    response = RedirectResponse(path, 303)
    # Also behind a reverse proxy that received the request over TLS.
    is_encrypted = scope.get("scheme") == "https" or Headers(scope=scope).get("x-forwarded-proto", "") == "https"
    response.set_cookie(_cookie_of(scope), token, httponly=True, samesite="strict", path=path, secure=is_encrypted)
    return response


def _cookie_of(scope: Scope) -> str:
    """Returns a cookie name that contains the port, because browsers share cookies between the ports of a host."""
    return f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"


def _too_large(largest: int) -> str:
    return f"the body must have at most {largest:,} bytes: send less at a time"


def _limited(receive: Receive, largest: int) -> Receive:
    """Returns a function that receives at most so many bytes; a body without a length can be of any size."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, _too_large(largest))
        return message

    return limited


def _add_security_headers(scope: Scope, message: Message) -> None:
    """Adds the security headers to the start of a response; other messages are left as they are."""
    if message["type"] == "http.response.start":
        headers = MutableHeaders(scope=message)
        headers.raw.extend((*_RAW_HEADERS, *scope.get(_HEADERS, ())))  # no answer has them already
        if scope.get("scheme") == "https":
            headers["strict-transport-security"] = ONLY_TLS
        headers.setdefault("cache-control", "no-store")


def _refuse_malformed(scope: Scope, limits: Limits) -> Response | None:
    """Returns the response to a request that others may read differently, or that exceeds the limits; else None."""
    raw, path = Headers(scope=scope).raw, scope.get("raw_path") or b""
    names = {name for name, _ in raw}
    if {b"content-length", b"transfer-encoding"} <= names:
        message = "a request must not have both Content-Length and Transfer-Encoding: send one of them"
        return error_response(message, 400, {"connection": "close"})
    if b"%" in path:  # no path needs it, and a rule of a proxy may see another path than this server
        return error_response("there is no such path: no path needs %", 404)
    size = sum(len(name) + len(value) for name, value in raw)
    size += len(path) + len(scope["query_string"])
    if size <= limits.header_bytes and len(raw) <= limits.headers:
        return None
    message = f"a request must have at most {limits.headers} headers and {limits.header_bytes:,} bytes: remove cookies"
    return error_response(message, 431, {"connection": "close"})
