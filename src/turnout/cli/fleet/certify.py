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

from turnout.cli.options import FleetArgument, JsonOption, prepare_file, print_json, say
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.kernel.certificate import Certificate, TimeUnit
from turnout.live import FleetReader
from turnout.live import certify as write_certificate
from turnout.live._internals import verify as verifier
from turnout.storage.files.identify import not_a
from turnout.storage.store import Location

#: The number of differences that are printed, and the number of characters of each.
MAX_SHOWN, MAX_LENGTH = 10, 1000
BALANCE = "The books balance: turns ≥ promised − owed − forfeited for every client."
IMBALANCE = "The books do NOT balance: turns < promised − owed − forfeited for some clients, the accounting is damaged."
#: The number of clients that are shown by default.
MAX_CLIENTS = 20
#: The number of clients that a sentence names.
MAX_NAMED = 10


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


def _show_certificate(file: Location, every: bool, tolerance: float | None, json: bool) -> bool:
    with FleetReader(file) as reader, reader.reading():
        certificate, ids = reader.certificate(), reader.state().fleet.ids
    if tolerance is not None:
        certificate = certificate.judged(tolerance)
    rows = np.argsort(-certificate.behind_units, kind="stable")
    shown = (rows if every else rows[:MAX_CLIENTS]).tolist()
    if json:
        print_json(certificate.to_dict(ids, shown))
        return certificate.holds
    _print_certificate(certificate, shown, ids)
    say(f"Promise {certificate.summary().sentence(ids.__getitem__)}.")
    return certificate.holds


def _print_certificate(certificate: Certificate, rows: Sequence[int], ids: Sequence[str]) -> None:
    """Prints the table of a certificate, with the queue of owed turns only where it differs from `behind`.

    The lines below it say what owed and forfeited turns are, and who was not served yet.
    """
    queued = np.maximum(certificate.behind_units, 0)  # what is owed, unless a client has or had a surplus
    backed_off = np.zeros(len(ids), np.int64) if certificate.backed_off is None else certificate.backed_off
    further = {
        "owed>": (certificate.owed, (certificate.owed_units != queued) & certificate.has_queue),
        "forfeited>": (certificate.forfeited, certificate.forfeited_units > 0),
        "backed off>": (backed_off, backed_off > 0),
    }
    further = {heading: (values, mask) for heading, (values, mask) in further.items() if mask[rows].any()}
    cells = (
        (
            ids[row],
            f"{certificate.promised[row]:,.2f}",
            f"{certificate.turns[row]:,}",
            f"{certificate.behind[row]:+,.2f}",
            str(certificate.statuses[row]),
            *(_number(values[row]) if mask[row] else "" for values, mask in further.values()),
        )
        for row in rows
    )
    print_table(("client", "promised>", "turns>", "behind>", "status", *further), cells)
    if len(rows) < len(ids):
        say(f"The {len(rows)} of {len(ids):,} clients that are furthest behind; --all shows all.")
    if certificate.has_queue and (certificate.owed_units > queued)[rows].any():
        say(
            "owed: the queue by which the policy selects; it never falls below 0, so a client that once had a surplus "
            "can be owed more than it is behind."
        )
    if "backed off>" in further:
        say(
            f"backed off: {certificate.unit.plural} in which a client was not offered a turn because it had missed its "
            "last ones. They are not promised to it, unless accrual is always."
        )
    if forfeited := float(certificate.forfeited.sum()):
        dropped = f"{forfeited:,.2f} turns were dropped from the queue because of max_owed"
        say(f"forfeited: {dropped}; behind still counts them.")
    if unserved := np.flatnonzero(certificate.unserved).tolist():
        more = f" and {len(unserved) - MAX_NAMED:,} more" if len(unserved) > MAX_NAMED else ""
        names = ", ".join(ids[row] for row in unserved[:MAX_NAMED])
        say(f"Without a turn, because they were there for too few rounds to be promised one: {names}{more}.")


def _number(value: float | np.int64) -> str:
    return f"{value:,}" if isinstance(value, np.integer) else f"{value:,.2f}"


def _write_certificate(file: Location, out: Path, json: bool) -> bool:
    with FleetReader(file):  # what is no fleet is refused before a folder is created
        prepare_file(out, ".json")
    record = out.with_suffix(".jsonl")
    content = write_certificate(file, out, record)
    certificate, ids = _judged_certificate(content, record)
    promise = certificate.summary().to_dict(ids.__getitem__)
    clients = len(content["clients"])
    if json:
        print_json({"certificate": str(out), "record": str(record), **content, "clients": clients, "promise": promise})
        return certificate.holds
    say(
        f"{out}: {pluralize(clients, 'client')}, {pluralize(content['rounds'], _unit(content).turn)}",
        f"{record}: {pluralize(content['events'], 'event')}, SHA-256 {content['record_sha256']}",
        f"Promise {promise['sentence']}.",
        *_summarised(content),
        f"To verify: turnout verify {out} {record}",
    )
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
            if _is_record(text) and not _is_record(lines.readline(verifier.LONGEST)):
                raise SettingError(f"{certificate} is the record and {record} the certificate: swap them")
            lines.seek(0)
            differences = verifier.differences(text, verifier.lines_of(lines))
        content = {} if differences else json_module.loads(text)
        known = {} if differences else _verified(content, record)
    except OSError as error:
        raise SettingError(f"cannot read {error.filename}: {error.strerror or error}") from error
    if json:
        print_json({"verified": not differences, "differences": differences, **known})
    else:
        for difference in differences[:MAX_SHOWN]:
            say(difference if len(difference) <= MAX_LENGTH else f"{difference[:MAX_LENGTH]}…")
        if len(differences) > MAX_SHOWN:
            say(f"and {len(differences) - MAX_SHOWN:,} more")
        say("NOT verified." if differences else "Verified: the certificate matches the record.")
        if known:
            books = BALANCE if known["books_balance"] else IMBALANCE
            say(f"Promise {known['promise']['sentence']}.", books, *_summarised(content))
    if differences:
        raise typer.Exit(1)


def _is_record(content: bytes) -> bool:
    """Returns whether a file is a record, by its beginning: the first line of a record has its terms."""
    try:
        first = json_module.loads(content.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("kind") == "terms"


def _summarised(certificate: Mapping[str, Any]) -> list[str]:
    """Returns a line about the rounds or turns that are not part of the record, if there are any."""
    if "summary" not in certificate:
        return []
    first = f"{_unit(certificate)} {certificate['summary']['round']:,}"
    stated = "what clients were promised and got up to then is stated, and cannot be computed again"
    return [f"The record begins after {first}: {stated}."]


def _verified(content: Mapping[str, Any], record: Path) -> dict[str, Any]:
    """Returns what a verified certificate says about the promise, and whether the books of all clients balance."""
    judged, ids = _judged_certificate(content, record)
    everybody = _certificate_of(content, list(content["clients"]))
    return {"promise": judged.summary().to_dict(ids.__getitem__), "books_balance": everybody.books_balance}


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
    names = ("turns", "promised_units", "owed_units", "forfeited_units", "broken_since")
    columns: dict[str, Any] = {name: np.array([client[name] for client in clients], dtype=np.int64) for name in names}
    return Certificate(
        **columns,
        units_per_turn=int(content["terms"]["units_per_turn"]),
        tolerance=float(Fraction(content["terms"]["tolerance"])),
        unit=_unit(content),
    )


def _unit(certificate: Mapping[str, Any]) -> TimeUnit:
    """Returns what a certificate counts."""
    return TimeUnit.of(certificate["settings"].get("concurrency"))
