"""`turnout certify` and `turnout verify`: certificates of the guaranteed rates that third parties can verify."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turnout.cli.options import JsonOption, print_json, printable
from turnout.errors import SettingError
from turnout.scheduler import certify as write_certificate
from turnout.scheduler import verifier

MAX_SHOWN = 10


def certify(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="File of the fleet, such as fleet.turnout.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the certificate.")] = Path("certificate.json"),
    record: Annotated[
        Path | None,
        typer.Option(help="File for the record; by default the name of the certificate with the suffix .jsonl."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a certificate of the turns that each client was promised and got, and the record that proves it.

    Exit code: 0 if the promise is kept, 1 if it is broken. `turnout verify` checks the two files.

    Example: turnout certify fleet.turnout --out certificate.json
    """
    record_path = out.with_suffix(".jsonl") if record is None else record
    certificate = write_certificate(fleet, out, record_path)
    clients = certificate["clients"]
    if json:
        summary = {name: value for name, value in certificate.items() if name != "clients"}
        print_json({"certificate": str(out), "record": str(record_path), **summary, "clients": len(clients)})
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        console.print(f"{out}: {len(clients):,} clients, {certificate['rounds']:,} rounds")
        console.print(f"{record_path}: {certificate['events']:,} events, SHA-256 {certificate['record_sha256']}")
        status = "kept for every client, except for owed and forfeited turns" if certificate["holds"] else "BROKEN"
        console.print(f"The promise is {status}. To verify: turnout verify {out} {record_path}")
    if not certificate["holds"]:
        raise typer.Exit(1)


def verify(
    certificate: Annotated[
        Path | None, typer.Argument(metavar="CERTIFICATE", help="Certificate written by `turnout certify`.")
    ] = None,
    record: Annotated[Path | None, typer.Argument(metavar="RECORD", help="Record of the certificate.")] = None,
    source: Annotated[
        bool, typer.Option("--source", help="Print the source of the verifier, which runs without turnout.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Recompute a certificate from its record, event by event, and compare.

    Exit code: 0 if the certificate matches the record, 1 if it does not.

    Example: turnout verify certificate.json certificate.jsonl
    """
    if source:
        typer.echo(inspect.getsource(verifier), nl=False)
        return
    if certificate is None or record is None:
        raise SettingError("pass a certificate and its record, such as certificate.json certificate.jsonl")
    try:
        with record.open("rb") as lines:
            differences = verifier.differences(certificate.read_bytes(), lines)
    except OSError as error:
        raise SettingError(f"cannot read {error.filename}: {error.strerror or error}") from error
    if json:
        print_json({"verified": not differences, "differences": differences})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for difference in differences[:MAX_SHOWN]:
            console.print(printable(difference))
        if len(differences) > MAX_SHOWN:
            console.print(f"and {len(differences) - MAX_SHOWN:,} more")
        console.print("NOT verified." if differences else "Verified: the certificate matches the record.")
    if differences:
        raise typer.Exit(1)
