"""`turnout fleet serve`: fleets over HTTP."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.fleet.dashboard import EXPOSED
from turnout.cli.options import Location, parse_location, require_packages, say


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
    from turnout.service.access import Rates
    from turnout.service.serving import Options, fleet_names
    from turnout.service.serving import serve as serve_fleets
    from turnout.web.access import is_loopback

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

    make_page = import_module("turnout.dashboard.choice").make_page if page else None
    serve_fleets(fleets, options, make_page=make_page, announce=announce, skip=skip)
