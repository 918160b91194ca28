"""Serves the dashboard until the process is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from turnout.dashboard.app import make_app
from turnout.dashboard.files import page_files
from turnout.dashboard.watch import Watch
from turnout.storage.store import Location
from turnout.web.access import Access, SharedToken, is_loopback
from turnout.web.serving import LIMITS, Limits, Server, address_of, listen

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
            announce(_url(listener, generated))
            with suppress(KeyboardInterrupt):  # the normal way to end the dashboard
                server.run(sockets=[listener])
    finally:
        watch.stop()


def make_server(watch: Watch, access: Access, limits: Limits = LIMITS) -> Server:
    """Returns the HTTP server of a dashboard."""
    return Server(make_app(watch, access, limits=limits), limits, [watch.request_stop], shutdown_seconds=1)


def _url(listener: socket.socket, token: str | None) -> str:
    return f"{address_of(listener)}/{'' if token is None else f'?token={quote(token)}'}"
