"""Checks every request before the application reads it: its size, its host, its token and the kind of its body."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.service.access.callers import Access, Caller, set_caller
from turnout.service.access.rates import RateLimiter, Rates
from turnout.service.metrics import Traffic
from turnout.web.connections import LIMITS, Limits
from turnout.web.headers import add_security_headers, refuse_large_headers
from turnout.web.hosts import names_loopback

log = get_log("turnout.service")
#: The paths of the service; all others belong to the page.
PREFIX = "/v1/"
METRICS = "/metrics"
#: Paths that are answered without a token, for monitors and for those who write clients; they reveal nothing secret.
PUBLIC = ("/healthz", "/readyz", "/openapi.json")
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The largest bodies of requests, in bytes: of devices, and of servers, which send the statuses of whole fleets."""

    device: int = 1 << 16
    other: int = 1 << 26

    def of(self, caller: Caller) -> int:
        """Returns the limit for a caller."""
        return self.device if caller.role == "device" else self.other


class Guard:
    """ASGI middleware in front of the service, and of the page that is served beside it.

    Args:
        app: The service.
        access: Finds the caller of a request.
        page: The application that answers all other paths; it has its own guard. None if there is none.
        limits: The limits of headers.
        bodies: The limits of bodies.
        rates: How often a token may be used.
        traffic: Counts the requests.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        page: ASGIApp | None = None,
        limits: Limits = LIMITS,
        bodies: BodyLimits | None = None,
        rates: Rates | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._app, self._access, self._page, self._limits = app, access, page, limits
        self._bodies, self._rates = bodies or BodyLimits(), RateLimiter(rates or Rates())
        self._traffic = traffic or Traffic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_public, is_own = scope["path"] in PUBLIC, f"{scope['path']}/".startswith(PREFIX) or scope["path"] == METRICS
        if self._page is not None and not is_public and not is_own:
            is_reading = scope["method"] in ("GET", "HEAD")
            await (self._page if is_reading else _no_change_here)(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def with_headers(message: Message) -> None:
            nonlocal status
            status = status or message["status"]
            add_security_headers(message)
            await send(message)

        try:
            refusal = refuse_large_headers(scope, self._limits) or self._refuse_host(scope)
            if refusal is None and not is_public:
                refusal, receive = self._admit(scope, receive)
            await (self._app if refusal is None else refusal)(scope, receive, with_headers)
        except Exception as error:
            log.error("%s failed", scope["path"], exc_info=error)
            if status:
                raise
            message = "the service failed to answer this request: see its log"
            await JSONResponse({"error": message}, 500)(scope, receive, with_headers)
        finally:
            if is_own:
                self._count(scope, status, time.perf_counter() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts a request under its fleet and operation; "" if the router has found none."""
        fleet, endpoint = scope.get("path_params", {}).get("fleet", ""), scope.get("endpoint")
        known = fleet if fleet in scope["app"].state.fleets else ""
        self._traffic.count(known, getattr(endpoint, "__name__", ""), status, seconds)

    def _refuse_host(self, scope: Scope) -> Response | None:
        if self._access.needs_token or names_loopback(HTTPConnection(scope).headers.get("host", "")):
            return None
        message = "a service without tokens accepts only localhost or 127.0.0.1 as the host name"
        return JSONResponse({"error": message}, 421)

    def _admit(self, scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
        """Returns a refusal, or what reads the body of the request up to the limit."""
        request = HTTPConnection(scope)
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        text = credentials.strip() if scheme.lower() == "bearer" else ""
        try:
            caller = self._access.caller(text)
        except StoreError as error:
            log.error("tokens cannot be read: %s", error)
            return JSONResponse({"error": "the tokens cannot be read: see the log of the service"}, 503), receive
        if caller is None:
            message = (
                "the token is unknown, revoked or expired: ask for another one"
                if text
                else "this service needs a token: send the header Authorization: Bearer …"
            )
            return JSONResponse({"error": message}, 401, headers={"www-authenticate": "Bearer"}), receive
        seconds = self._rates.seconds_to_wait(caller)
        if seconds:
            message = "this token is used too often: wait, as Retry-After says, and send the same Idempotency-Key"
            return JSONResponse({"error": message}, 429, headers={"retry-after": str(math.ceil(seconds))}), receive
        set_caller(request, caller)
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return None, receive
        # A page of another site can send other kinds of bodies, but not this one, without being allowed to first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return JSONResponse({"error": f"the body must be JSON: send the header Content-Type: {JSON}"}, 415), receive
        most = self._bodies.of(caller)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            return _too_large(most), receive
        return None, _limited(receive, most)


async def _no_change_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a change of the page, which is usually a call with a mistyped path."""

    async def with_headers(message: Message) -> None:
        add_security_headers(message)
        await send(message)

    message = "there is no such call: the paths of the service begin with /v1/fleets/, and others can only be read"
    await JSONResponse({"error": message}, 405, headers={"allow": "GET, HEAD"})(scope, receive, with_headers)


def _too_large(most: int) -> Response:
    message = f"the body must have at most {most:,} bytes: send less at a time"
    return JSONResponse({"error": message}, 413, headers={"connection": "close"})


def _limited(receive: Receive, most: int) -> Receive:
    """Returns a function that receives at most so many bytes; a body without a length can be of any size."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"the body must have at most {most:,} bytes: send less at a time")
        return message

    return limited
