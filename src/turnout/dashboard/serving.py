"""Serves the dashboard until the process is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from urllib.parse import quote

import uvicorn

from turnout.dashboard.app import make_app
from turnout.dashboard.files import page_files
from turnout.dashboard.guard import check_token
from turnout.dashboard.watch import Watch
from turnout.web.connections import LIMITS, Limits, protocol_with
from turnout.web.hosts import is_loopback
from turnout.web.listening import address_of, listen

PORT = 8484


def serve(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Follows the store at `path` and serves its dashboard.

    Args:
        path: The file of a fleet or of a store of runs.
        host: The address to listen on. An address that other machines can reach requires a token.
        port: The port to listen on; by default 8484, or any free port if 8484 is in use.
        token: The access token; generated if the host requires one and none is given.
        announce: Called with the URL once the server listens. It contains a generated token, but never a given one.
    """
    generated = secrets.token_urlsafe(24) if token is None and not is_loopback(host) else None
    token = generated if token is None else token
    check_token(host, token)
    page_files()  # fails early if Plotly is missing
    watch = Watch(path)
    try:
        with listen(host, (PORT, 0) if port is None else (port,)) as listener:
            watch.start()
            server = make_server(watch, token)
            announce(_url(listener, generated))
            with suppress(KeyboardInterrupt):  # the normal way to end the dashboard
                server.run(sockets=[listener])
    finally:
        watch.stop()


def make_server(watch: Watch, token: str | None, limits: Limits = LIMITS) -> uvicorn.Server:
    """Returns an HTTP server without access log, which would contain tokens, and without a server header."""
    config = uvicorn.Config(
        make_app(watch, token=token, limits=limits),
        http=protocol_with(limits),
        h11_max_incomplete_event_size=limits.header_bytes,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, watch)


class _Server(uvicorn.Server):
    """Ends the streams of changes before it shuts down, so that it need not wait for them."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGINT and SIGTERM."""
        self._watch.request_stop()
        super().handle_exit(sig, frame)


def _url(listener: socket.socket, token: str | None) -> str:
    return f"{address_of(listener)}/{'' if token is None else f'?token={quote(token)}'}"
