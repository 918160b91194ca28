"""Access control (loopback or token) and security headers of the dashboard."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.errors import SettingError
from turnout.web.connections import LIMITS, Limits
from turnout.web.headers import add_security_headers, refuse_large_headers
from turnout.web.hosts import is_loopback, names_loopback

log = logging.getLogger("turnout.dashboard")
COOKIE = "turnout_token"
SHORTEST_TOKEN = 12
METHODS = ("GET", "HEAD")
#: Paths that are answered without a token, for monitors and load balancers; their responses reveal nothing then.
PUBLIC = ("/healthz",)
_AUTHORIZED, _TOKEN = "turnout.authorized", "turnout.token"
#: The key of a scope with the path under which the dashboard is served, such as /fleets/phones; "" by default.
PREFIX = "turnout.prefix"


def check_token(host: str, token: str | None) -> None:
    """Raises SettingError for a weak token, or for a missing token if other machines can reach the host."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingError(f"the token must have at least {SHORTEST_TOKEN} printable ASCII characters")
    if token is None and not is_loopback(host):
        raise SettingError(f"other machines can reach {host}: pass a token")


def is_authorized(scope: Scope) -> bool:
    """Returns whether a request that the Guard let through had the token, or needed none."""
    return bool(scope.get(_AUTHORIZED, False))


def token_of(scope: Scope) -> str:
    """Returns the token of a request that the Guard let through; "" if it needed none."""
    return str(scope.get(_TOKEN, ""))


class Guard:
    """ASGI middleware: checks the method, the Host header and the token, and adds security headers to responses.

    Args:
        app: The dashboard.
        token: The only token that gives access.
        accepts: Returns whether a token gives access, if there are several. Without either, only this machine has
            access.
        limits: The limits of headers.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        accepts: Callable[[str], bool] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self._app, self._limits = app, limits
        self._accepts = accepts if token is None else _comparison(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses the request or passes it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            started = True
            add_security_headers(message)
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (self._app if refusal is None else refusal)(scope, receive, with_headers)
        except Exception as error:
            log.error("%s failed", scope["path"], exc_info=error)
            if started:
                raise
            message = "the server failed to answer this request: see the log in the terminal of the dashboard"
            await JSONResponse({"error": message}, 500)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if (too_large := refuse_large_headers(scope, self._limits)) is not None:
            return too_large
        if scope["method"] not in METHODS:
            allowed = {"allow": ", ".join(METHODS)}
            return JSONResponse({"error": "this dashboard is read-only: use GET or HEAD"}, 405, headers=allowed)
        if self._accepts is None:
            if not names_loopback(headers.get("host", "")):  # prevents DNS rebinding
                return JSONResponse(
                    {"error": "this dashboard accepts only localhost or 127.0.0.1 as the host name"}, 421
                )
            scope[_AUTHORIZED] = True
            return None
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and token and self._is_token(token):
            path = f"{scope.get(PREFIX, '')}/"
            response = RedirectResponse(path, 303)
            response.set_cookie(
                _cookie_of(scope), token, httponly=True, samesite="strict", path=path, secure=_is_encrypted(scope)
            )
            return response
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(_cookie_of(scope), "")
        for sent in (credentials.strip() if scheme.lower() == "bearer" else "", cookie):
            if self._is_token(sent):
                scope[_AUTHORIZED], scope[_TOKEN] = True, sent
                return None
        if scope["path"] in PUBLIC:
            return None
        message = "this dashboard needs its token: open its address with ?token="
        if scope["path"] == "/":
            return PlainTextResponse(f"{message}…\n", 401)
        return JSONResponse({"error": f"{message}…, or send it as a bearer token"}, 401)

    def _is_token(self, token: str) -> bool:
        assert self._accepts is not None
        return self._accepts(token)


def _comparison(token: str) -> Callable[[str], bool]:
    """Returns a function that compares texts with a token in constant time."""
    secret = token.encode()
    return lambda text: hmac.compare_digest(text.encode("utf-8", "surrogateescape"), secret)


def _cookie_of(scope: Scope) -> str:
    """Returns a cookie name that contains the port, because browsers share cookies between the ports of a host."""
    return f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"


def _is_encrypted(scope: Scope) -> bool:
    """Returns whether the server, or a reverse proxy, received the request over TLS."""
    return scope.get("scheme") == "https" or Headers(scope=scope).get("x-forwarded-proto", "") == "https"
