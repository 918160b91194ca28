"""`turnout fleet dashboard | serve | tokens`: a live web page, fleets over HTTP, and who may call them."""

from __future__ import annotations

import webbrowser
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from turnout.cli.options import FleetArgument, JsonOption, Location, parse_location, print_json, require_packages, say
from turnout.cli.tables import print_table
from turnout.errors import SettingError
from turnout.log import printable as escaped
from turnout.service.access import FleetTokens, as_date
from turnout.storage.encoding.limits import read_file
from turnout.web.access import ROLES, Role, is_loopback

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
    from turnout.service.access import Rates
    from turnout.service.serving import Options, fleet_names
    from turnout.service.serving import serve as serve_fleets

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


#: The largest file of client ids: ids of a million clients.
MAX_ID_BYTES = 1 << 26


def create(
    fleet: FleetArgument,
    role: Annotated[str, typer.Option(help=f"What the holder may do: {', '.join(ROLES)}. See above.")],
    client: Annotated[
        list[str] | None, typer.Option(help="Id of the client whose device gets the token. Repeatable.")
    ] = None,
    clients: Annotated[
        Path | None, typer.Option(help="File with the ids of clients, one per line: one token for each.")
    ] = None,
    label: Annotated[str, typer.Option(help="Note about the token, for people.")] = "",
    days: Annotated[
        float | None, typer.Option(help="Number of days for which it is valid; by default for ever.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Create a token and print it. It is shown only once: the file of the fleet contains only its digest.

    Several tokens of devices are printed after their clients, one per line.

    device: checks in and reports for its own client. server: selects clients, reports and closes rounds. viewer: reads.
    operator: everything, and alone changes settings and forgets clients.

    Example: turnout fleet tokens create fleet.turnout --role device --client phone-1
    """
    ids = [*(client or []), *([] if clients is None else _read_ids(clients))]
    with FleetTokens(fleet) as file:
        made = file.create(cast(Role, role), clients=ids, label=label, days=days)
    if json:
        print_json([{"token": new.text, **asdict(new.token)} for new in made])
        return
    is_single = clients is None and len(made) == 1
    for new in made:
        typer.echo(new.text if is_single else f"{escaped(new.token.client or '')} {new.text}")


def list_(fleet: FleetArgument, json: JsonOption = False) -> None:
    """List the tokens: their ids, roles and states, not their secrets.

    Example: turnout fleet tokens list fleet.turnout
    """
    with FleetTokens(fleet, read_only=True) as file:
        tokens = file.list()
    if json:
        print_json([{**asdict(token), "state": token.state} for token in tokens])
        return
    rows = (
        (each.id, each.role, each.client or "", each.state, as_date(each.created), as_date(each.expires), each.label)
        for each in tokens
    )
    print_table(("id", "role", "client", "state", "created", "expires", "label"), rows, title=str(fleet))


def revoke(
    fleet: FleetArgument,
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as listed, or the whole token.")],
) -> None:
    """Revoke a token for good; a running service refuses it from its next request on.

    Example: turnout fleet tokens revoke fleet.turnout 3f9c27a41be0
    """
    with FleetTokens(fleet) as file:
        revoked = file.revoke(token)
    say(f"Token {revoked.id} ({revoked.role}) was revoked at {as_date(revoked.revoked)} UTC.")


def _read_ids(path: Path) -> list[str]:
    """Returns the lines of a file, without empty ones."""
    try:
        lines = read_file(path, MAX_ID_BYTES).decode("utf-8").splitlines()
    except (OSError, EOFError, ValueError) as error:
        raise SettingError(f"cannot read client ids from {path}: {error}") from error
    ids = [line.strip() for line in lines if line.strip()]
    if not ids:
        raise SettingError(f"{path} has no client ids: write one per line")
    return ids
