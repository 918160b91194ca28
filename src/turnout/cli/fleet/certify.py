"""`turnout fleet certify` and `turnout verify`: certificates of a promise that third parties can verify."""

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

from turnout.cli.fleet.promise import certificate_table, explain_certificate
from turnout.cli.options import FleetArgument, JsonOption, print_json, printable
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.kernel.certificate import Certificate, TimeUnit
from turnout.live import FleetReader
from turnout.live import certify as write_certificate
from turnout.live._internals import verify as verifier
from turnout.storage.files.identify import not_a

#: The number of differences that are printed, and the number of characters of each.
MAX_SHOWN, MAX_LENGTH = 10, 1000
#: The number of clients that are shown by default.
MAX_CLIENTS = 20


def certify(
    file: FleetArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File for the certificate; the record gets the same name with the suffix .jsonl."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Show all clients instead of the {MAX_CLIENTS} that are furthest behind.")
    ] = False,
    tolerance: Annotated[
        float | None, typer.Option(help="Judge by this tolerance, in turns, instead of the tolerance of the fleet.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the turns that each client was promised and got, and whether the promise is kept, behind or broken.

    A client is behind by the promised turns minus the turns that it got. The promise to a client is kept if it is
    less than one turn behind, and broken if it is further behind than the tolerance.

    With --out, write a certificate of this and the record that proves it, for `turnout verify`.

    Exit code: 1 if the promise to any client is broken, 0 otherwise.

    Example: turnout fleet certify fleet.turnout --out certificate.json
    """
    if out is not None and (every or tolerance is not None):
        raise SettingError("--all and --tolerance change what is printed, not the certificate: omit them, or --out")
    holds = _show_certificate(file, every, tolerance, json) if out is None else _write_certificate(file, out, json)
    if not holds:
        raise typer.Exit(1)


def _show_certificate(file: Path, every: bool, tolerance: float | None, json: bool) -> bool:
    with FleetReader(file) as reader, reader.reading():
        certificate, ids = reader.certificate(), reader.state().fleet.ids
    if tolerance is not None:
        certificate = certificate.judged(tolerance)
    rows = np.argsort(-certificate.behind_units, kind="stable")
    shown = (rows if every else rows[:MAX_CLIENTS]).tolist()
    if json:
        print_json(certificate.to_dict(ids, shown))
        return certificate.holds
    Console().print(certificate_table(certificate, shown, ids))
    console = Console(highlight=False, soft_wrap=True)
    if len(shown) < len(ids):
        console.print(f"The {len(shown)} of {len(ids):,} clients that are furthest behind; --all shows all.")
    for line in explain_certificate(certificate, shown, ids):
        console.print(printable(line))
    console.print(printable(f"Promise {certificate.summary().sentence(ids.__getitem__)}."))
    return certificate.holds


def _write_certificate(file: Path, out: Path, json: bool) -> bool:
    record = out.with_suffix(".jsonl")
    content = write_certificate(file, out, record)
    certificate, ids = _judged_certificate(content, record)
    promise = certificate.summary().to_dict(ids.__getitem__)
    clients = len(content["clients"])
    if json:
        print_json({"certificate": str(out), "record": str(record), **content, "clients": clients, "promise": promise})
        return certificate.holds
    console = Console(highlight=False, soft_wrap=True, markup=False)
    played = pluralize(content["rounds"], _unit(content).turn)
    console.print(f"{out}: {pluralize(clients, 'client')}, {played}")
    console.print(f"{record}: {pluralize(content['events'], 'event')}, SHA-256 {content['record_sha256']}")
    console.print(printable(f"Promise {promise['sentence']}."))
    _print_summary(console, content)
    console.print(f"To verify: turnout verify {out} {record}")
    return certificate.holds


def verify(
    certificate: Annotated[
        Path | None, typer.Argument(metavar="CERTIFICATE", help="Certificate written by `turnout fleet certify --out`.")
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
    return {"promise": found.summary().to_dict(ids.__getitem__), "books_balance": everybody.books_balance}


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
    """Returns what a certificate states about these clients."""
    clients = [content["clients"][client] for client in ids]

    def column(name: str) -> IntArray:
        return np.array([client[name] for client in clients], dtype=np.int64)

    return Certificate(
        turns=column("turns"),
        units_per_turn=int(content["terms"]["units_per_turn"]),
        promised_units=column("promised_units"),
        owed_units=column("owed_units"),
        forfeited_units=column("forfeited_units"),
        tolerance=float(Fraction(content["terms"]["tolerance"])),
        broken_since=column("broken_since"),
        unit=_unit(content),
    )


def _unit(certificate: Mapping[str, Any]) -> TimeUnit:
    """Returns what a certificate counts."""
    return TimeUnit.of(certificate["settings"].get("concurrency"))


def _books(balance: bool) -> str:
    if balance:
        return "The books balance: turns ≥ promised − owed − forfeited for every client."
    return "The books do NOT balance: turns < promised − owed − forfeited for some clients, the accounting is damaged."
