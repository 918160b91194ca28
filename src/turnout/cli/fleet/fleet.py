"""`turnout fleet`: reads the file of a live fleet, also while its scheduler is running."""

from __future__ import annotations

import json as json_module
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnout.cli.fleet.amend import amend
from turnout.cli.fleet.create import create
from turnout.cli.fleet.operate import abandon_round, backup, compact, forget, repair, retire
from turnout.cli.fleet.promise import behind_words, certificate_table, explain_certificate, promise_to_dict
from turnout.cli.options import JsonOption, print_json, printable
from turnout.counting import counted
from turnout.errors import ReportError, SettingError
from turnout.kernel.certificate import Certificate, TimeUnit
from turnout.live import FleetReader, SchedulerStatus, Turn
from turnout.live._internals import Finding, examine
from turnout.storage.files.atomic import atomic_write

fleet = typer.Typer(
    no_args_is_help=True,
    help="Inspect and maintain the file of a live fleet.\n\nExample: turnout fleet status fleet.turnout",
)
for command in (create, amend, backup, compact, retire, forget, abandon_round, repair):
    fleet.command()(command)

FleetArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of the fleet, such as fleet.turnout.")]
MAX_SHOWN = 20


@fleet.command()
def status(file: FleetArgument, json: JsonOption = False) -> None:
    """Show the open round, pending, failed and late clients, the promise and who is behind, and back-offs.

    Without rounds, it shows the turns under way, with their ages and deadlines.

    Example: turnout fleet status fleet.turnout
    """
    with FleetReader(file) as reader, reader.reading():
        found, fleet = reader.status(), reader.state().fleet  # with the clients that are new in the open round
        ids, promise = fleet.ids, fleet.certificate() if fleet.ids else None
        training = [] if found.slots is None else _training(reader)
    if json:
        known = None if promise is None else promise_to_dict(promise.summary(), ids)
        print_json({**asdict(found), "promise": known})
        return
    table = _table("", "", title=str(file), show_header=False)
    for heading, lines in _status_rows(found, promise, ids, training):
        table.add_row(heading, Text("\n").join(printable(line) for line in lines))
    Console().print(table)


@fleet.command()
def certificate(
    file: FleetArgument,
    every: Annotated[
        bool, typer.Option("--all", help=f"Show all clients instead of the {MAX_SHOWN} that are furthest behind.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Judge by this tolerance, in turns, instead of the tolerance of the fleet."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the turns that each client was promised and got, and whether the promise is kept, behind or broken.

    A client is behind by the promised turns minus the turns that it got. The promise to a client is kept if it is
    less than one turn behind, and broken if it is further behind than the tolerance.

    Exit code: 1 if the promise to any client is broken, 0 otherwise.

    Example: turnout fleet certificate fleet.turnout --all
    """
    with FleetReader(file) as reader:
        fleet, policy = reader.state().fleet, reader.settings.policy
    found, ids = fleet.certificate(), fleet.ids
    if found is None:
        raise SettingError(f"the policy {policy} guarantees nothing: use fair-pace for a certificate")
    if tolerance is not None:
        found = found.judged(tolerance)
    rows = np.argsort(-found.behind_units, kind="stable")
    shown = (rows if every else rows[:MAX_SHOWN]).tolist()
    summary = found.summary()
    if json:
        clients = [_client_dict(found, row, ids[row]) for row in shown]
        print_json({**promise_to_dict(summary, ids), "holds": found.holds, "clients": clients, "of": len(ids)})
    else:
        Console().print(certificate_table(found, shown, ids))
        console = Console(highlight=False, soft_wrap=True)
        if len(shown) < len(ids):
            console.print(f"The {len(shown)} of {len(ids):,} clients that are furthest behind; --all shows all.")
        for line in explain_certificate(found, shown, ids):
            console.print(printable(line))
        console.print(printable(f"Promise {summary.sentence(ids.__getitem__)}."))
    if not found.holds:
        raise typer.Exit(1)


@fleet.command()
def history(
    file: FleetArgument,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Id of the client.")],
    json: JsonOption = False,
) -> None:
    """Show all turns of a client (times in seconds), its reliability, and how far it is behind its promise.

    Example: turnout fleet history fleet.turnout phone-17
    """
    with FleetReader(file) as reader, reader.reading():
        fleet, turns = reader.state().fleet, reader.history(client)
    row = fleet.rows.get(client)
    if row is None:
        raise ReportError(f"there is no client {client!r} in {file}: check the id")
    promise, guarantee, reliability = fleet.certificate(), fleet.policy.guarantee, float(fleet.history.reliability[row])
    is_chosen = guarantee is not None and guarantee.paid == "chosen"
    paid = sum(turn.kind == "arrived" or (is_chosen and turn.kind is not None) for turn in turns)
    behind, owed = (None, None) if promise is None else (float(promise.behind[row]), float(promise.owed[row]))
    if json:
        rows = [turn.to_dict() for turn in turns]
        known = {"client": client, "reliability": reliability, "counted": paid, "behind": behind, "owed": owed}
        print_json({**known, "turns": rows})
        return
    suffix = "" if promise is None else f"; {_standing(promise, row)}"
    Console().print(_turns_table(turns, client, fleet.unit.turn))
    count_as = "counts as a turn" if paid == 1 else "count as turns"
    selections = f"selected {counted(len(turns), 'time')}, of which {paid:,} {count_as}"
    Console(highlight=False, soft_wrap=True).print(f"{selections}, reliability {reliability:.2f}{suffix}")


@fleet.command()
def export(
    file: FleetArgument,
    out: Annotated[Path | None, typer.Option(help="File to write; by default standard output.")] = None,
) -> None:
    """Write all events of the fleet as JSON lines, one event per line.

    Example: turnout fleet export fleet.turnout --out events.jsonl
    """
    if out is not None and out.exists() and out.samefile(file):
        raise SettingError(f"{out} is the fleet itself: export to another file")
    with FleetReader(file) as reader, closing(reader.export()) as events:
        lines = (f"{json_module.dumps(event, ensure_ascii=False)}\n" for event in events)
        if out is not None:
            with atomic_write(out) as temporary:
                temporary.writelines(line.encode() for line in lines)
            return
        for line in lines:
            typer.echo(line, nl=False)


@fleet.command()
def doctor(file: FleetArgument, json: JsonOption = False) -> None:
    """Check the whole file for damage, and print what is damaged and what to do.

    Exit code: 0 if the file is intact, 1 if it is not.

    Example: turnout fleet doctor fleet.turnout
    """
    findings = examine(file)
    intact = all(finding.ok is not False for finding in findings)
    if json:
        print_json({"sound": intact, "findings": [finding.to_dict() for finding in findings]})
    else:
        _print_findings(findings, file, intact)
    if not intact:
        raise typer.Exit(1)


def _training(reader: FleetReader) -> list[str]:
    """Returns the turns under way of a fleet without rounds, with their ages and deadlines."""
    return [
        f"{turn.id}, turn {flight.decision:,}: {_age(flight.deadline, flight.elapsed)}"
        for flight, turn in reader.in_flight()
        if turn.kind is None
    ]


def _status_rows(
    found: SchedulerStatus, promise: Certificate | None, ids: list[str], training: list[str]
) -> Iterator[tuple[str, list[str]]]:
    yield "clients", [f"{found.clients:,}, {found.retired:,} of them retired"]
    if found.is_open:
        yield "round", [f"{found.round}, open {_age(found.deadline, found.elapsed)}"]
        yield "reported", [f"{len(found.arrived)} of {found.wanted} required", *_shorten(found.arrived)]
        pending = f"{len(found.out)} since {found.elapsed:.1f} s" if found.out else "none"
        yield "pending", [pending, *_shorten(found.out)]
    elif found.slots is not None:
        yield "turns", [f"{found.round:,} were given; {counted(len(found.out), 'slot', 'are', of=found.slots)} in use"]
        if training:
            yield "training", _shorten(training)
    else:
        yield "round", [f"{found.round} is closed, no round is open" if found.round else "no round was opened yet"]
    unit = TimeUnit.of(found.slots).turn
    lists = {
        "failed": [f"{client}: {why}" for client, why in found.failed.items()],
        "behind": [f"{client} by {turns:.2f} turns" for client, turns in found.behind.items()],
        "backing off": [f"{client} until {unit} {last}, inclusive" for client, last in found.backing_off.items()],
    }
    yield from ((heading, _shorten(lines)) for heading, lines in lists.items() if lines)
    if promise is not None:
        yield "promise", [promise.summary().sentence(ids.__getitem__)]
    if found.notices:
        yield "notes", found.notices


def _age(deadline: float | None, elapsed: float) -> str:
    if deadline is None:
        return f"for {elapsed:.1f} s; no deadline"
    left = deadline - elapsed
    relative = f"{left:.1f} s left" if left > 0 else f"exceeded by {-left:.1f} s"
    return f"for {elapsed:.1f} s; deadline {deadline:.1f} s, {relative}"


def _shorten(lines: list[str]) -> list[str]:
    """Returns the first lines, and the number of the others."""
    return lines if len(lines) <= MAX_SHOWN else [*lines[:MAX_SHOWN], f"and {len(lines) - MAX_SHOWN:,} more"]


def _client_dict(found: Certificate, row: int, client: str) -> dict[str, Any]:
    status = str(found.statuses[row])
    return {
        "client": client,
        "turns": int(found.turns[row]),
        "promised": float(found.promised[row]),
        "behind": float(found.behind[row]),
        "status": status,
        "unserved": bool(found.unserved[row]),
        "owed": float(found.owed[row]),
        "forfeited": float(found.forfeited[row]),
        "kept": status != "broken",
    }


def _print_findings(findings: list[Finding], file: Path, intact: bool) -> None:
    marks = {True: "intact", False: "DAMAGED", None: ""}
    table = _table("part", "", "finding", title=str(file))
    for finding in findings:
        table.add_row(finding.part, marks[finding.ok], printable(finding.message))
    Console().print(table)
    console = Console(highlight=False, soft_wrap=True)
    remedies = dict.fromkeys(finding.remedy for finding in findings if finding.ok is False and finding.remedy)
    command = f"run `turnout fleet repair {shlex.quote(str(file))} --accept-older`"
    for remedy in remedies:
        console.print(printable(f"To do: {remedy.replace('open the file with accept_older=True', command)}."))
    console.print("The file is intact." if intact else "The file is damaged.")


def _standing(promise: Certificate, row: int) -> str:
    """Says how many turns a client was promised and got, and the status of its promise."""
    return (
        f"promised {promise.promised[row]:,.2f} turns, got {promise.turns[row]:,}, "
        f"{behind_words(float(promise.behind[row]))}: {promise.statuses[row]}"
    )


def _turns_table(turns: list[Turn], client: str, noun: str) -> Table:
    """Returns the table of a client's turns, with a column for losses if the client reported any."""
    has_losses = any(turn.loss is not None for turn in turns)
    heading = ["loss"] if has_losses else []
    headings = (noun, "outcome", "seconds", *heading, "why", "late after", "reported (UTC)")
    table = _table(*headings, title=printable(client))
    for turn in turns:
        loss = ["" if turn.loss is None else f"{turn.loss:.4g}"] if has_losses else []
        table.add_row(
            str(turn.round),
            turn.kind or "pending",
            _number(turn.seconds),
            *loss,
            printable(turn.why or ""),
            _number(turn.late_seconds),
            (turn.late_at or turn.at or "")[:19].replace("T", " "),
        )
    return table


def _table(*headings: str, title: str | Text = "", show_header: bool = True) -> Table:
    numbers = ("round", "turn", "seconds", "loss", "late after")
    table = Table(title=title or None, show_header=show_header)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
