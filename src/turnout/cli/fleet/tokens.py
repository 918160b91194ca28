"""`turnout fleet tokens`: who may call the HTTP service of a fleet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from turnout.cli.options import FleetArgument, JsonOption, print_json, say
from turnout.cli.tables import print_table
from turnout.errors import SettingError
from turnout.log import printable as escaped
from turnout.service.access import FleetTokens, as_date
from turnout.storage.encoding.limits import read_file
from turnout.web.access import ROLES, Role

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
