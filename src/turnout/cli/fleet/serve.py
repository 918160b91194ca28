"""`turnout fleet dashboard | serve`: a live web page about a store, and fleets over HTTP."""

from __future__ import annotations

import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.options import Location, parse_location, require_packages, say

#: What to know about an address that is not loopback.
EXPOSED = (
    "Other machines can reach this address, and the connection is not encrypted. Run a TLS proxy (nginx, Caddy) in "
    "front of it"
)


def dashboard(
    store: Annotated[
        Location,
        typer.Argument(
            metavar="STORE", parser=parse_location, help="Store of runs, or file or address of a live fleet."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; every address other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port; by default 8484, or a free port if that is in use. 0: a free port."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TURNOUT_TOKEN",
            help="Secret that a browser must send, at least 12 characters; never printed. Other users can see options "
            "of a command: prefer the environment. Generated and printed by default if --host is not "
            "loopback.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in a web browser, without a token of your own.")
    ] = False,
) -> None:
    """Serve a read-only web page about a store, which follows the store while it is written.

    Press Ctrl-C to stop.

    Example: turnout fleet dashboard results/runs.turnout --open
    """
    require_packages("the dashboard", "dashboard", "fastapi", "uvicorn", "h11", "plotly")
    from turnout.dashboard.serving import serve as serve_page
    from turnout.web.hosts import is_loopback

    def announce(address: str) -> None:
        say(f"{store} at {address}")
        if not is_loopback(host):
            say(f"{EXPOSED} that forwards to 127.0.0.1, omit --host and pass a token.")
        if "?token=" in address:
            say("Keep the address secret: it contains the token.")
        elif token is not None:
            say("To open the page, add ?token= and your token to the address.")
        say("Press Ctrl-C to stop.")
        if open_:
            webbrowser.open(address)

    serve_page(store, host=host, port=port, token=token, announce=announce)


def serve(
    fleets: Annotated[
        list[Location],
        typer.Argument(
            metavar="FLEET…", parser=parse_location, help="Files of the fleets, or their addresses in databases."
        ),
    ],
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
    standby: Annotated[
        bool,
        typer.Option("--standby", help="Start although another service writes the fleets, and take over when it ends."),
    ] = False,
    device_rate: Annotated[
        float, typer.Option(help="Calls per second that the token of a device may send; 0: any number.")
    ] = 10.0,
    rate: Annotated[float, typer.Option(help="Calls per second that any other token may send; 0: any number.")] = 0.0,
) -> None:
    """Serve fleets over HTTP: servers in any language select clients, and devices check in and report.

    The fleet in fleet.turnout has the address /v1/fleets/fleet, one in a database the address of its name. GET
    /openapi.json describes all calls. `turnout fleet tokens create` makes the tokens. Press Ctrl-C to stop: calls that
    were accepted are executed and answered first.

    Example: turnout fleet serve fleet.turnout --port 8080
    """
    require_packages("the service", "service", "fastapi", "uvicorn", "h11")
    if page:
        require_packages("the page (without it: --no-page)", "dashboard", "plotly")
    from turnout.service.access.rates import Rates
    from turnout.service.serving import Options, fleet_names
    from turnout.service.serving import serve as serve_fleets
    from turnout.web.hosts import is_loopback

    rates = Rates(device_rate or None, rate or None)
    options = Options(host, port, tokens, certificate, key, rates=rates, standby=standby)
    names = fleet_names(fleets)

    def announce(address: str) -> None:
        for name, path in names.items():
            say(f"{path} at {address}/v1/fleets/{name}")
        if page:
            once = "; open it once with ?token= and a token of a server, a viewer or an operator" if tokens else ""
            which = f"Dashboard of {next(iter(names))}" if len(names) == 1 else "Dashboards of all fleets"
            say(f"{which} at {address}/{once}")
        if not is_loopback(host) and certificate is None:
            say(f"{EXPOSED}, or pass --certificate and --key.")
        if not tokens:
            say("Every program on this machine may do everything: no token is needed.")
        say("Press Ctrl-C to stop.")

    def skip(location: Location, why: str) -> None:
        say(f"{location} is not served yet, and is tried again from time to time: {why}")

    make_page = import_module("turnout.dashboard.serving").make_page if page else None
    serve_fleets(fleets, options, make_page=make_page, announce=announce, skip=skip)
