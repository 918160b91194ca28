"""The dashboards of several fleets under one address: a list of them at `/`, and each at `/fleets/NAME/`."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from turnout.dashboard.guard import PREFIX, Guard, token_of
from turnout.web.connections import LIMITS, Limits

FOLDER = "/fleets/"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fleets</title>
</head>
<body>
<h1>Fleets</h1>
<ul>
{links}
</ul>
</body>
</html>
"""


class FleetPages:
    """An ASGI application that passes each request to the dashboard of the fleet that its path names.

    Args:
        pages: The dashboards, by the names of their fleets.
        may_read: Returns whether a token gives access to a fleet; None if no token is needed.
        limits: The limits of headers.
    """

    def __init__(
        self,
        pages: Mapping[str, ASGIApp],
        *,
        may_read: Callable[[str, str], bool] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self._pages, self._may_read = dict(pages), may_read
        accepts = None if may_read is None else lambda token: bool(self._readable(token))
        self._list = Guard(self._list_fleets, token=None, accepts=accepts, limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; the dashboard sees the path after that of its fleet."""
        name, slash, rest = scope["path"].removeprefix(FOLDER).partition("/")
        if not scope["path"].startswith(FOLDER) or name not in self._pages:
            await self._list(scope, receive, send)
            return
        if not slash:
            await RedirectResponse(f"{FOLDER}{name}/", 307)(scope, receive, send)
            return
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), PREFIX: f"{FOLDER}{name}"}
        await self._pages[name](inner, receive, send)

    async def _list_fleets(self, scope: Scope, receive: Receive, send: Send) -> None:
        readable = list(self._pages) if self._may_read is None else self._readable(token_of(scope))
        response: Response
        if scope["path"] != "/":
            response = JSONResponse(
                {"error": f"there is no such page: the dashboard of a fleet is at {FOLDER}NAME/"}, 404
            )
        elif len(readable) == 1:
            response = RedirectResponse(f"{FOLDER}{readable[0]}/", 303)
        else:
            links = (f'<li><a href="{FOLDER}{html.escape(name)}/">{html.escape(name)}</a></li>' for name in readable)
            response = HTMLResponse(PAGE.format(links="\n".join(links)))
        await response(scope, receive, send)

    def _readable(self, token: str) -> list[str]:
        """Returns the fleets that a token gives access to."""
        return [name for name in self._pages if self._may_read is not None and self._may_read(token, name)]
