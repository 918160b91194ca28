"""`turnout certify` and `turnout verify`: a promise that others can check."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnout.cli.options import JsonOption, print_json
from turnout.errors import SettingError
from turnout.scheduler import certify as write_certificate
from turnout.scheduler import verifier

SHOWN = 10


def certify(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet, such as fleet.turnout.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the certificate goes.")] = Path("certificate.json"),
    record: Annotated[
        Path | None, typer.Option(help="Where its record goes; by default beside it, ending in .jsonl.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write what every client was promised and had, and the record from which anybody can count it again.

    Exit code 0 if the promise is kept, 1 if it is broken. `turnout verify` checks the two files.
    """
    beside = out.with_suffix(".jsonl") if record is None else record
    found = write_certificate(fleet, out, beside)
    clients = found["clients"]
    if json:
        told = {name: value for name, value in found.items() if name != "clients"}
        print_json({"certificate": str(out), "record": str(beside), **told, "clients": len(clients)})
    else:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"{out}: {len(clients):,} clients, {found['rounds']:,} rounds", markup=False)
        console.print(f"{beside}: {found['events']:,} events, SHA-256 {found['record_sha256']}", markup=False)
        kept = "kept to everyone, but for what is owed and forfeited" if found["holds"] else "BROKEN"
        console.print(f"The promise is {kept}. To check: turnout verify {out} {beside}", markup=False)
    if not found["holds"]:
        raise typer.Exit(1)


def verify(
    certificate: Annotated[Path | None, typer.Argument(metavar="CERTIFICATE", help="As certify wrote it.")] = None,
    record: Annotated[Path | None, typer.Argument(metavar="RECORD", help="The record beside it.")] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the verifier: one file, to be read and run without turnout.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Count a certificate again from its record, line by line, and compare.

    Exit code 0 if all of it is what the record comes to, 1 if not.
    """
    if source:
        typer.echo(inspect.getsource(verifier), nl=False)
        return
    if certificate is None or record is None:
        raise SettingError("give a certificate and its record, such as certificate.json certificate.jsonl")
    try:
        with record.open("rb") as lines:
            found = verifier.differences(certificate.read_bytes(), lines)
    except OSError as missing:
        raise SettingError(f"cannot read {missing.filename}: {missing.strerror or missing}") from missing
    if json:
        print_json({"verified": not found, "differences": found})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for one in found[:SHOWN]:
            console.print(_shown(one), markup=False)
        if len(found) > SHOWN:
            console.print(f"and {len(found) - SHOWN:,} more")
        console.print("NOT verified." if found else "Verified: the certificate is what the record comes to.")
    if found:
        raise typer.Exit(1)


def _shown(words: str) -> str:
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in words)
