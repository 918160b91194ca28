"""`turnout fleet serve`: fleets over HTTP."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from turnout.errors import SettingError

if TYPE_CHECKING:  # they need FastAPI
    from turnout.service.access.callers import Access
    from turnout.service.serving import Page


def serve(
    fleets: Annotated[list[Path], typer.Argument(metavar="FLEET…", help="Files of the fleets.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; every address other than loopback needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free port.")] = 8080,
    tokens: Annotated[
        bool, typer.Option("--tokens/--no-tokens", help="Whether a request needs a token of the fleet.")
    ] = True,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Whether the dashboards of the fleets are served, from / on.")
    ] = True,
    certificate: Annotated[
        Path | None, typer.Option(help="File of the TLS certificate (PEM). By default plain HTTP, for a proxy.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="File of its private key (PEM).")] = None,
    most_waiting: Annotated[
        int, typer.Option(min=1, help="Calls of a fleet that may wait; further ones are refused for a second (429).")
    ] = 1000,
    device_rate: Annotated[
        float, typer.Option(help="Calls per second that the token of a device may send; 0: any number.")
    ] = 10.0,
    rate: Annotated[float, typer.Option(help="Calls per second that any other token may send; 0: any number.")] = 0.0,
) -> None:
    """Serve fleets over HTTP: servers in any language select clients, and devices check in and report.

    The fleet in fleet.turnout has the address /v1/fleets/fleet. GET /openapi.json describes all calls. `turnout fleet
    tokens create` makes the tokens. Press Ctrl-C to stop: calls that were accepted are executed and answered first.

    Example: turnout fleet serve fleet.turnout --port 8080
    """
    for package in ("fastapi", "uvicorn", "h11"):
        if importlib.util.find_spec(package) is None:
            raise SettingError(f"the service needs {package}: pip install 'turnout[service]'")
    if page and importlib.util.find_spec("plotly") is None:
        raise SettingError("the page needs plotly: pip install 'turnout[dashboard]', or pass --no-page")
    from turnout.service.access.rates import Rates
    from turnout.service.serving import Options, fleet_names
    from turnout.service.serving import serve as serve_fleets
    from turnout.web.hosts import is_loopback

    rates = Rates(device_rate or None, rate or None)
    options = Options(host, port, tokens, certificate, key, most_waiting, rates=rates)
    console = Console(highlight=False, soft_wrap=True)
    names = fleet_names(fleets)

    def announce(address: str) -> None:
        for name, path in names.items():
            console.print(f"{path} at {address}/v1/fleets/{name}", markup=False)
        if page:
            once = "; open it once with ?token= and a token of a server, a viewer or an operator" if tokens else ""
            which = f"Dashboard of {next(iter(names))}" if len(names) == 1 else "Dashboards of all fleets"
            console.print(f"{which} at {address}/{once}", markup=False)
        if not is_loopback(host) and certificate is None:
            console.print(
                "Other machines can reach this service, and the connection is not encrypted. Run a TLS proxy (nginx, "
                "Caddy) in front of it, or pass --certificate and --key."
            )
        if not tokens:
            console.print("Every program on this machine may do everything: no token is needed.")
        console.print("Press Ctrl-C to stop.")

    make_page = _page_maker(names) if page else None
    serve_fleets(fleets, options, make_page=make_page, announce=announce)


def _page_maker(names: Mapping[str, Path]) -> Callable[[Access], Page]:
    """Returns what makes the dashboard of a fleet or, of several, a list of them and the dashboard of each."""
    from turnout.dashboard.app import make_app
    from turnout.dashboard.choice import FleetPages
    from turnout.dashboard.files import page_files
    from turnout.dashboard.watch import Watch
    from turnout.service.serving import Page

    page_files()  # fails early if Plotly's script is missing

    def make_page(access: Access) -> Page:
        watches = {name: Watch(path) for name, path in names.items()}
        pages = {
            name: make_app(watch, accepts=partial(_accepts, access, name) if access.needs_token else None)
            for name, watch in watches.items()
        }
        for watch in watches.values():
            watch.start()

        def end() -> None:
            for watch in watches.values():
                watch.request_stop()

        def close() -> None:
            for watch in watches.values():
                watch.stop()

        may_read = access.may_read if access.needs_token else None
        app = next(iter(pages.values())) if len(pages) == 1 else FleetPages(pages, may_read=may_read)
        return Page(app, end, close)

    return make_page


def _accepts(access: Access, name: str, token: str) -> bool:
    return access.may_read(token, name)
