"""Who may look: this machine's own browser, or whoever has the token; and the headers that keep a page harmless."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.errors import SettingError

log = logging.getLogger("turnout.dashboard")
COOKIE = "turnout_token"
SHORTEST_TOKEN = 12
#: Styles may stand in elements, for the charts put them there; scripts may not.
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
METHODS = ("GET", "HEAD")
_HOST = re.compile(r"(\[[^\[\]]+\]|[^:\[\]]+)(?::\d+)?")


def is_loopback(host: str) -> bool:
    """Whether this address, or name, is this machine's own and nobody else's.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuse to be seen from elsewhere without one, and a short one anywhere."""
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingError(f"the token must have at least {SHORTEST_TOKEN} plain characters")
    if token is None and not is_loopback(host):
        raise SettingError(f"{host} can be reached from elsewhere: give a token")


class Guard:
    """Around the whole application: methods, the name it was called by, the token, and headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (self._app if refusal is None else refusal)(scope, receive, with_headers)
        except Exception as error:
            log.error("%s failed", scope["path"], exc_info=error)
            if begun:
                raise
            words = "this could not be shown; the terminal of the dashboard says why"
            await JSONResponse({"error": words}, 500)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            allowed = {"allow": ", ".join(METHODS)}
            return JSONResponse({"error": "this page can only be looked at"}, 405, headers=allowed)
        if self._token is None:
            # A page elsewhere may point a name of its own at this machine; it cannot choose what the browser calls it.
            name = _HOST.fullmatch(headers.get("host", ""))
            if name is None or not is_loopback(name[1]):
                return JSONResponse({"error": "this dashboard answers to localhost and 127.0.0.1 only"}, 421)
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and given and self._is_token(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(
                _cookie_of(scope), given, httponly=True, samesite="strict", path="/", secure=_is_encrypted(headers)
            )
            return answer
        scheme, _, word = headers.get("authorization", "").partition(" ")
        shown = cookie_parser(headers.get("cookie", "")).get(_cookie_of(scope), "")
        if (scheme.lower() == "bearer" and self._is_token(word.strip())) or self._is_token(shown):
            return None
        words = "this dashboard needs its token: open the address that was printed when it started, with ?token="
        if scope["path"] == "/":
            return PlainTextResponse(f"{words}…\n", 401)
        return JSONResponse({"error": f"{words}…, or send it as a bearer token"}, 401)

    def _is_token(self, given: str) -> bool:
        assert self._token is not None
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token)


def _cookie_of(scope: Scope) -> str:
    """A name for each port: browsers share cookies between all of a machine's."""
    return f"{COOKIE}_{(scope.get('server') or ('', 0))[1]}"


def _is_encrypted(headers: Headers) -> bool:
    """As a server with TLS in front says."""
    return headers.get("x-forwarded-proto", "") == "https"
