"""HTTP servers, the sockets on which they listen, and pages that are served beside an application."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from turnout.errors import SettingError
from turnout.log import get_log
from turnout.web.connections import Limits, Refusals, protocol_with

if sys.platform != "win32":
    import resource

log = get_log("turnout.web")
#: The number of connections that may wait to be accepted.
BACKLOG = 128
#: The number of files that a server opens besides its connections.
OTHER_FILES = 200


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """Returns a socket that listens on the first of these ports that is free; 0 stands for any free port.

    Raises:
        SettingError: If none is free, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for index, port in enumerate(ports):
        listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # where it would let two servers listen on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if index + 1 < len(ports):
                continue
            raise SettingError(
                f"cannot listen on {host} port {port} ({error.strerror or error}): pass another host or port",
                argument="port",
            ) from error
        else:
            return listener
    raise AssertionError("unreachable")


def allow_files(limits: Limits) -> Limits:
    """Lets the process open files for so many connections, if it may; returns limits that it can keep."""
    if sys.platform == "win32":  # has no such limit
        return limits
    needed, (soft, hard) = limits.most_connections + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # a negative number stands for no limit
        soft = needed if hard < 0 else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not 0 <= soft < needed:
        return limits
    possible = max(10, (soft - OTHER_FILES) * 9 // 10)
    log.warning("only %d connections are possible: let the process open %d files, not %d", possible, needed, soft)
    return replace(limits, connections=possible)


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL of a server that listens on a socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class Page:
    """A web page that is served beside an application.

    Attributes:
        app: The application of the page.
        end: Called when the server begins to end, so that streams of the page end as well.
        close: Called when the server has ended.
    """

    app: ASGIApp
    end: Callable[[], None]
    close: Callable[[], None]


class Server(uvicorn.Server):
    """An HTTP server without access log, which would contain tokens, and without a server header.

    Args:
        app: The application.
        limits: The limits of connections.
        endings: Called before the server shuts down, to end streams, so that it need not wait for them.
        shutdown_seconds: How long running requests may take then.
        certificate: The file of a TLS certificate; None for plain HTTP.
        key: The file of its private key; None if it is in the same file.
        refusals: Counts the connections that are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        endings: Sequence[Callable[[], None]],
        *,
        shutdown_seconds: int,
        certificate: Path | None = None,
        key: Path | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        limits = allow_files(limits)
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_with(limits, refusals, context),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=limits.header_bytes,
                ws="none",
                lifespan="off",
                log_level="error",  # its warnings are about requests that are refused, which are counted
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=shutdown_seconds,
            )
        )
        self._endings = endings

    def end(self) -> None:
        """Lets the server shut down, as SIGTERM does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, closes the sockets, and waits for the running requests."""
        for end in self._endings:
            end()
        await super().shutdown(sockets)
