"""Serves fleets until the process is interrupted."""

from __future__ import annotations

import re
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from turnout.errors import SettingError
from turnout.live import FleetReader
from turnout.log import get_log
from turnout.service.access import Rates
from turnout.service.app import make_app
from turnout.service.calls import FleetCalls
from turnout.service.fleet import FleetAccess, FleetFile
from turnout.storage.store import Location
from turnout.web.access import Access, is_loopback
from turnout.web.guard import BodyLimits
from turnout.web.serving import Limits, Page, Server, address_of, listen

log = get_log("turnout.service")
PORT = 8080
#: How long running requests may take once the service is ending, in seconds.
SHUTDOWN_SECONDS = 30
#: Devices poll: more connections than a dashboard has.
LIMITS = Limits(connections=2000)
#: Why a standby does not serve a fleet yet.
WAITING = "another process writes it, and this service waits to take over"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Options:
    """How fleets are served.

    Attributes:
        host: The address to listen on.
        port: The port; 0 for any free one.
        tokens: Whether requests need a token. Without tokens, only this machine can be served.
        certificate: The file of a TLS certificate; None for plain HTTP, behind a proxy or on this machine.
        key: The file of its private key; None if it is in the same file.
        limits: The limits of connections.
        bodies: The limits of bodies.
        rates: How often a token may be used.
        standby: Whether the service starts although another process writes its fleets, which must be in databases.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    tokens: bool = True
    certificate: Path | None = None
    key: Path | None = None
    limits: Limits = LIMITS
    bodies: BodyLimits = BodyLimits()  # noqa: RUF009  # it is frozen
    rates: Rates = Rates()  # noqa: RUF009  # it is frozen
    standby: bool = False

    def __post_init__(self) -> None:
        if not self.tokens and not is_loopback(self.host):
            raise SettingError(f"other machines can reach {self.host}: a service without tokens must not listen on it")
        if self.key is not None and self.certificate is None:
            raise SettingError("key needs a certificate: pass both")
        for path in (self.certificate, self.key):
            if path is not None and not path.is_file():
                raise SettingError(f"there is no file {path}: check the path")
        if self.certificate is not None:
            _check_certificate(self.certificate, self.key)


def _check_certificate(certificate: Path, key: Path | None) -> None:
    """Raises an error if a TLS server could not use these files, or would ask for the password of the key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except OSError as error:  # errors of TLS as well
        files = f"{certificate} and {key}" if key is not None else str(certificate)
        raise SettingError(
            f"cannot use {files} for TLS ({error}): pass a certificate and its own private key as PEM files, the key "
            "without a password"
        ) from error


def fleet_names(locations: Sequence[Location]) -> dict[str, Location]:
    """Returns the names of fleets in addresses: those of their files, without the ending, or in their databases."""
    names: dict[str, Location] = {}
    for location in locations:
        name = location.stem
        if not _NAME.fullmatch(name):
            raise SettingError(f"{name!r} is part of addresses: rename {location} to letters, digits, dots, - and _")
        if name in names:
            raise SettingError(f"{names[name]} and {location} would have the same name, {name!r}: rename one of them")
        names[name] = location
    return names


@contextmanager
def open_fleets(locations: Sequence[Location], options: Options) -> Iterator[tuple[dict[str, FleetCalls], FleetAccess]]:
    """Opens fleets and their tokens, and starts their threads; at the end, executes what waits and closes them.

    A fleet that cannot be opened is not ready, and its thread tries it again and again.

    Raises:
        TurnoutError: If no fleet can be opened, unless a standby waits for one.
    """
    if options.standby:
        for location in locations:
            if isinstance(location, Path):
                raise SettingError(f"{location} is a file, which only one machine can open: a standby needs a database")
    files = {name: FleetFile(place, needs_tokens=options.tokens) for name, place in fleet_names(locations).items()}
    with ExitStack() as opened:
        fleets = {}
        for name, file in files.items():
            fleets[name] = FleetCalls(file)
            opened.callback(fleets[name].stop)
            file.open()
        wanted = [file for file in files.values() if not (options.standby and file.is_standby)]
        refusals = [file.refusal for file in wanted if file.refusal is not None]
        if len(refusals) == len(files):
            raise refusals[0]
        for calls in fleets.values():
            calls.start()
        yield fleets, FleetAccess(files if options.tokens else None)


def log_skipped(location: Location, why: str) -> None:
    """Logs that a fleet cannot be opened yet."""
    log.error("%s is not served yet: %s", location, why)


def make_server(app: FastAPI, options: Options, page: Page | None = None) -> Server:
    """Returns the HTTP server of an application."""
    return Server(
        app,
        options.limits,
        [
            app.state.ending.set,
            *(calls.held.end for calls in app.state.fleets.values()),
            *([] if page is None else [page.end]),
        ],
        refusals=app.state.refusals,
        shutdown_seconds=SHUTDOWN_SECONDS,
        certificate=options.certificate,
        key=options.key,
    )


def serve(
    locations: Sequence[Location],
    options: Options,
    *,
    make_page: Callable[[Mapping[str, tuple[Location, Callable[[], FleetReader]]], Access], Page] | None = None,
    announce: Callable[[str], None] = print,
    skip: Callable[[Location, str], None] = log_skipped,
) -> None:
    """Serves fleets until the process is interrupted by SIGINT, SIGTERM or SIGHUP.

    Then no new connection is accepted, running requests are answered, and calls that wait are executed.

    Args:
        locations: The files or addresses of the fleets, which must exist.
        options: How they are served.
        make_page: Returns the page that answers all other paths, such as a dashboard. It is given the place of each
            fleet with what opens a reader of it, and what finds the caller of a request.
        announce: Called with the URL once the server listens.
        skip: Called before that with each fleet that cannot be opened yet, and why.
    """
    with (
        open_fleets(locations, options) as (fleets, access),
        listen(options.host, (options.port,)) as listener,
        ExitStack() as opened,
    ):
        files = {name: calls.file for name, calls in fleets.items()}
        readers = {name: (_resolved(file.location), file.open_reader) for name, file in files.items()}
        page = None if make_page is None else make_page(readers, access)
        if page is not None:
            opened.callback(page.close)
        app = make_app(
            fleets,
            access,
            page=None if page is None else page.app,
            limits=options.limits,
            bodies=options.bodies,
            rates=options.rates,
        )
        server = make_server(app, options, page)
        for file in files.values():
            if file.refusal is not None:
                skip(file.location, WAITING if file.is_standby else str(file.refusal))
        with _surviving_signals(server), suppress(KeyboardInterrupt):  # the normal ways to end the service
            announce(address_of(listener, "http" if options.certificate is None else "https"))
            server.run(sockets=[listener])


def _resolved(location: Location) -> Location:
    return location.resolve() if isinstance(location, Path) else location


@contextmanager
def _surviving_signals(server: Server) -> Iterator[None]:
    """Ends the server after SIGTERM, also before uvicorn has its own handler, and lets the process close the fleets.

    SIGHUP, when a terminal is closed, ends it in the same way, unless it is ignored, as by nohup.
    """
    if threading.current_thread() is not threading.main_thread():  # other threads get no signals
        yield
        return
    numbers = [signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        numbers.append(hang_up)
    before = {number: signal.signal(number, lambda *_: server.end()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
