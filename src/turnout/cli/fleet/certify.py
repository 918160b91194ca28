"""`turnout certify` and `turnout verify`: certificates of a promise that third parties can verify."""

from __future__ import annotations

import inspect
import json as json_module
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from turnout.cli.fleet.promise import promise_to_dict
from turnout.cli.options import JsonOption, print_json, printable
from turnout.counting import counted
from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE, Certificate, TimeUnit
from turnout.live import certify as write_certificate
from turnout.live._internals import verify as verifier
from turnout.storage.files.identify import not_a

#: The number of differences that are printed, and the number of characters of each.
MAX_SHOWN, MAX_LENGTH = 10, 1000
#: The format of certificates of fleets without rounds.
SLOTS_FORMAT = 5


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

    Exit code: 1 if the promise to any client is broken, 0 otherwise. `turnout verify` checks the two files.

    Example: turnout certify fleet.turnout --out certificate.json
    """
    record_path = out.with_suffix(".jsonl") if record is None else record
    certificate = write_certificate(fleet, out, record_path)
    clients = certificate["clients"]
    found, ids = _judged_certificate(certificate, record_path)
    promise = promise_to_dict(found.summary(), ids)
    if json:
        summary = {name: value for name, value in certificate.items() if name != "clients"}
        paths = {"certificate": str(out), "record": str(record_path)}
        print_json({**paths, **summary, "clients": len(clients), "promise": promise})
    else:
        console = Console(highlight=False, soft_wrap=True, markup=False)
        played = counted(certificate["rounds"], _unit(certificate).turn)
        events = counted(certificate["events"], "event")
        console.print(f"{out}: {counted(len(clients), 'client')}, {played}")
        console.print(f"{record_path}: {events}, SHA-256 {certificate['record_sha256']}")
        console.print(printable(f"Promise {promise['sentence']}."))
        _print_summary(console, certificate)
        console.print(f"To verify: turnout verify {out} {record_path}")
    if not found.holds:
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

    It also prints the status of the promise, and whether the books balance: turns ≥ promised − owed − forfeited, which
    holds unless the accounting is damaged.

    Exit code: 0 if the certificate matches the record, 1 if it does not; the status of the promise does not change it.

    Example: turnout verify certificate.json certificate.jsonl
    """
    if source:
        typer.echo(inspect.getsource(verifier), nl=False)
        return
    if certificate is None or record is None:
        raise SettingError("pass a certificate and its record, such as certificate.json certificate.jsonl")
    for path, wanted in ((certificate, "a certificate"), (record, "the record of a certificate")):
        if wrong := not_a(path, wanted):
            raise SettingError(f"{wrong}: check the path")
    try:
        with certificate.open("rb") as file, record.open("rb") as lines:
            text = file.read(verifier.LONGEST + 1)
            differences = verifier.differences(text, verifier.lines_of(lines))
        known = {} if differences else _verified(json_module.loads(text), record)
    except OSError as error:
        raise SettingError(f"cannot read {error.filename}: {error.strerror or error}") from error
    if json:
        print_json({"verified": not differences, "differences": differences, **known})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for difference in differences[:MAX_SHOWN]:
            console.print(printable(difference if len(difference) <= MAX_LENGTH else f"{difference[:MAX_LENGTH]}…"))
        if len(differences) > MAX_SHOWN:
            console.print(f"and {len(differences) - MAX_SHOWN:,} more")
        console.print("NOT verified." if differences else "Verified: the certificate matches the record.")
        if known:
            console.print(printable(f"Promise {known['promise']['sentence']}."))
            console.print(_books(known["books_balance"]))
            _print_summary(console, json_module.loads(text))
    if differences:
        raise typer.Exit(1)


def _print_summary(console: Console, certificate: Mapping[str, Any]) -> None:
    """Prints which rounds or turns are not part of the record, if there are any."""
    if "summary" in certificate:
        console.print(
            f"The record begins after {_unit(certificate)} {certificate['summary']['round']:,}: what clients were "
            "promised and got up to then is stated, and cannot be computed again."
        )


def _verified(content: Mapping[str, Any], record: Path) -> dict[str, Any]:
    """Returns what a verified certificate says about the promise, and whether the books of all clients balance."""
    found, ids = _judged_certificate(content, record)
    everybody = _certificate_of(content, list(content["clients"]))
    return {"promise": promise_to_dict(found.summary(), ids), "books_balance": everybody.books_balance}


def _judged_certificate(content: Mapping[str, Any], record: Path) -> tuple[Certificate, list[str]]:
    """Returns the certificate of the clients that have not left, and their ids: only these can still be served."""
    left = set()
    with record.open("rb") as lines:
        for line in lines:
            if any(kind in line for kind in (b'"retire"', b'"forget"', b'"summary"')):
                event = json_module.loads(line)
                if event["kind"] in ("retire", "forget"):
                    left.add(event["client"])
                elif event["kind"] == "summary":
                    left.update(event["left"])
    ids = [client for client in content["clients"] if client not in left]
    return _certificate_of(content, ids), ids


def _certificate_of(content: Mapping[str, Any], ids: Sequence[str]) -> Certificate:
    """Returns what a certificate states about these clients; files of older releases have no tolerance."""
    clients = [content["clients"][client] for client in ids]

    def column(name: str) -> IntArray:
        return np.array([client.get(name, 0) for client in clients], dtype=np.int64)

    return Certificate(
        turns=column("turns"),
        units_per_turn=int(content["terms"]["units_per_turn"]),
        promised_units=column("promised_units"),
        owed_units=column("owed_units"),
        forfeited_units=column("forfeited_units"),
        tolerance=float(Fraction(content["terms"].get("tolerance", DEFAULT_TOLERANCE))),
        broken_since=column("broken_since"),
        unit=_unit(content),
    )


def _unit(certificate: Mapping[str, Any]) -> TimeUnit:
    """Returns what a certificate counts."""
    return TimeUnit.DECISION if int(certificate["format"]) >= SLOTS_FORMAT else TimeUnit.ROUND


def _books(balance: bool) -> str:
    if balance:
        return "The books balance: turns ≥ promised − owed − forfeited for every client."
    return "The books do NOT balance: turns < promised − owed − forfeited for some clients, the accounting is damaged."
