"""Serves the dashboard until it is told to stop."""

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
from turnout.dashboard.guard import check_token, is_loopback
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError

PORT = 8484


def serve(
    path: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Follow the store at `path` and serve its page; `announce` is given the address once it can be opened.

    `port`: by default 8484, or any that is free. An address that others can reach needs a token; one is made if none
    is given.
    """
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    check_token(host, token)
    page_files()  # says what is missing before anything is opened
    watch = Watch(path)
    try:
        with _listening(host, port) as listener:
            watch.start()
            server = server_of(watch, token)
            announce(_address(listener, token))
            with suppress(KeyboardInterrupt):  # which is how it is ended
                server.run(sockets=[listener])
    finally:
        watch.stop()


def server_of(watch: Watch, token: str | None) -> uvicorn.Server:
    """What answers: HTTP only, and it says nothing of itself."""
    config = uvicorn.Config(
        make_app(watch, token=token),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, watch)


class _Server(uvicorn.Server):
    """Ends at once: pages that listen for changes are let go first."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ctrl-C."""
        self._watch.end()
        super().handle_exit(sig, frame)


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = (PORT, 0) if port is None else (port,)
    for place, one in enumerate(wanted):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), one))
            listener.listen(128)
        except OSError as refused:
            listener.close()
            if place + 1 < len(wanted):
                continue
            raise SettingError(
                f"cannot listen on {host} port {one} ({refused.strerror or refused}): pass another host or port",
                argument="port",
            ) from refused
        else:
            return listener
    raise AssertionError("unreachable")


def _address(listener: socket.socket, token: str | None) -> str:
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/{'' if token is None else f'?token={quote(token)}'}"
