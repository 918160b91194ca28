"""`turnout dashboard`: a live page about a store."""

from __future__ import annotations

import importlib.util
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnout.errors import SettingError


def dashboard(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store of runs, or the file of a live fleet.")],
    host: Annotated[str, typer.Option(help="The address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="By default 8484, or any that is free; 0 is any.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TURNOUT_TOKEN",
            help="What a browser must show; off loopback one is made if none is given.",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Show a store as a live web page, on this machine, read-only: nothing that is looked at is changed.

    The store may be in use: the page follows what is written. End it with Ctrl-C.
    """
    for package in ("fastapi", "uvicorn", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise SettingError(f"the dashboard needs {package}: pip install 'turnout[dashboard]'")
    from turnout.dashboard.guard import is_loopback
    from turnout.dashboard.serving import serve

    console = Console(highlight=False, soft_wrap=True)

    def announce(address: str) -> None:
        console.print(f"{store} at {address}", markup=False)
        if not is_loopback(host):
            console.print(
                "Others can reach this, and what they read travels in the clear: put a server with TLS (nginx, Caddy) "
                "in front that passes on to 127.0.0.1, leave --host out and give --token. Keep the address: it holds "
                "the token."
            )
        console.print("Ctrl-C ends it.")
        if open_:
            webbrowser.open(address)

    serve(store, host=host, port=port, token=token, announce=announce)
