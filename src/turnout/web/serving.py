"""HTTP servers, and pages that are served beside an application."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from turnout.web.connections import Limits, Refusals, protocol_with
from turnout.web.listening import allow_files


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
