"""Serves the dashboard of one store, or those of several fleets: a list of them at `/`, each at `/fleets/NAME/`."""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import quote

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from turnout.dashboard.app import make_app, page_files
from turnout.dashboard.watch import Watch
from turnout.live import FleetReader
from turnout.storage.store import Location
from turnout.web.access import Access, SharedToken, is_loopback
from turnout.web.errors import error_response
from turnout.web.guard import PREFIX, PageGuard, caller_of
from turnout.web.serving import LIMITS, Limits, Page, Server, address_of, listen

FOLDER = "/fleets/"
#: Where the list of fleets has its rows, and the folder of its static files, those of the first fleet.
ROWS, STATIC = b"<!-- links -->", b"STATIC"


def make_page(fleets: Mapping[str, tuple[Location, Callable[[], FleetReader]]], access: Access) -> Page:
    """Returns the dashboard of a fleet or, of several, a list of them and the dashboard of each.

    Args:
        fleets: Where each fleet is, and what opens a reader of it, by its name.
        access: Finds the caller of a request.
    """
    page_files()  # fails early if Plotly's script is missing
    watches = {name: Watch(path, open_reader) for name, (path, open_reader) in fleets.items()}
    pages = {name: make_app(watch, access, fleet=name) for name, watch in watches.items()}
    for watch in watches.values():
        watch.start()

    def end() -> None:
        for watch in watches.values():
            watch.request_stop()

    def close() -> None:
        for watch in watches.values():
            watch.stop()

    return Page(next(iter(pages.values())) if len(pages) == 1 else FleetPages(pages, access), end, close)


class FleetPages:
    """An ASGI application that passes each request to the dashboard of the fleet that its path names.

    Args:
        pages: The dashboards, by the names of their fleets; each has its own guard.
        access: Finds the caller of a request for the list.
    """

    def __init__(self, pages: Mapping[str, ASGIApp], access: Access) -> None:
        self._pages = dict(pages)
        self._list = PageGuard(self._list_fleets, access=access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; the dashboard sees the path after that of its fleet."""
        name, slash, rest = scope["path"].removeprefix(FOLDER).partition("/")
        if not scope["path"].startswith(FOLDER) or name not in self._pages:
            await self._list(scope, receive, send)
            return
        if not slash:
            await RedirectResponse(f"{FOLDER}{name}/", 307)(scope, receive, send)
            return
        inner = {**scope, "path": f"/{rest}", PREFIX: f"{FOLDER}{name}"}
        await self._pages[name](inner, receive, send)

    async def _list_fleets(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        readable = [name for name in self._pages if caller is not None and caller.may_use(name)]
        response: Response
        if scope["path"] != "/":
            response = error_response(f"there is no such page: the dashboard of a fleet is at {FOLDER}NAME/", 404)
        elif len(readable) == 1:
            response = RedirectResponse(f"{FOLDER}{readable[0]}/", 303)
        else:
            page, names = page_files()["fleets.html"].data, [html.escape(name) for name in readable]
            link = '<tr data-fleet="{0}"><th class="text" scope="row"><a href="{1}{0}/">{0}</a></th></tr>'
            page = page.replace(ROWS, "\n".join(link.format(name, FOLDER) for name in names).encode())
            response = HTMLResponse(page.replace(STATIC, f"{FOLDER}{names[0]}/static".encode() if names else b""))
        await response(scope, receive, send)


PORT = 8484


def serve(
    path: Location,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Follows the store at `path` and serves its dashboard.

    Args:
        path: The file of a fleet or of a store of runs, or the address of a fleet in a database.
        host: The address to listen on. An address that other machines can reach requires a token.
        port: The port to listen on; by default 8484, or any free port if 8484 is in use.
        token: The access token; generated if the host requires one and none is given.
        announce: Called with the URL once the server listens. It contains a generated token, but never a given one.
    """
    generated = secrets.token_urlsafe(24) if token is None and not is_loopback(host) else None
    token = generated if token is None else token
    access = SharedToken(token, host)
    page_files()  # fails early if Plotly is missing
    watch = Watch(path)
    try:
        with listen(host, (PORT, 0) if port is None else (port,)) as listener:
            watch.start()
            server = make_server(watch, access)
            announce(f"{address_of(listener)}/{'' if generated is None else f'?token={quote(generated)}'}")
            with suppress(KeyboardInterrupt):  # the normal way to end the dashboard
                server.run(sockets=[listener])
    finally:
        watch.stop()


def make_server(watch: Watch, access: Access, limits: Limits = LIMITS) -> Server:
    """Returns the HTTP server of a dashboard."""
    return Server(make_app(watch, access, limits=limits), limits, [watch.request_stop], shutdown_seconds=1)
