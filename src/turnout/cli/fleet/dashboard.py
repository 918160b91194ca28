"""`turnout fleet dashboard`: a live web page about a store."""

from __future__ import annotations

import webbrowser
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
    from turnout.dashboard.serving import serve
    from turnout.web.access import is_loopback

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

    serve(store, host=host, port=port, token=token, announce=announce)
