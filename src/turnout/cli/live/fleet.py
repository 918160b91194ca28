"""`turnout fleet`: reads the file of a live fleet, also while its scheduler is running."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnout.cli.options import JsonOption, print_json, printable
from turnout.errors import SettingError
from turnout.kernel.certificate import Certificate
from turnout.scheduler import Finding, Scheduler, SchedulerStatus, Turn, examine
from turnout.store.atomic import atomic_write

fleet = typer.Typer(no_args_is_help=True, help="Inspect the file of a live fleet; no command changes it.")

FleetArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of the fleet, such as fleet.turnout.")]
MAX_SHOWN = 20


@fleet.command()
def status(file: FleetArgument, json: JsonOption = False) -> None:
    """Show the open round, pending, failed and late clients, clients that are owed turns, and back-offs.

    Example: turnout fleet status fleet.turnout
    """
    with Scheduler.open(file, read_only=True) as scheduler:
        found = scheduler.status()
    if json:
        print_json({**asdict(found), "resting": found.backing_off})  # the former name of backing_off
        return
    table = _table("", "", title=str(file), show_header=False)
    for heading, lines in _status_rows(found):
        table.add_row(heading, Text("\n").join(printable(line) for line in lines))
    Console().print(table)


@fleet.command()
def certificate(
    file: FleetArgument,
    every: Annotated[
        bool, typer.Option("--all", help=f"Show all clients instead of the {MAX_SHOWN} that are owed most.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show the turns that each client was promised and got, clients that are owed most first.

    Exit code: 0 if the certificate holds, 1 if it is broken.

    Example: turnout fleet certificate fleet.turnout --all
    """
    with Scheduler.open(file, read_only=True) as scheduler:
        found, ids = scheduler.certificate(), scheduler.clients
    worst = np.lexsort((-found.forfeited_units, -found.owed_units, found.balanced))
    shown = worst if every else worst[:MAX_SHOWN]
    clients = [
        {
            "client": ids[row],
            "turns": int(found.turns[row]),
            "promised": float(found.promised[row]),
            "owed": float(found.owed[row]),
            "forfeited": float(found.forfeited[row]),
            "kept": bool(found.balanced[row]),
        }
        for row in shown.tolist()
    ]
    if json:
        print_json({"holds": found.books_balance, "clients": clients, "of": len(ids)})
    else:
        _print_certificate(clients, found)
    if not found.books_balance:
        raise typer.Exit(1)


@fleet.command()
def history(
    file: FleetArgument,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Id of the client.")],
    json: JsonOption = False,
) -> None:
    """Show all turns of a client (times in seconds), its reliability, and the turns it is owed.

    Example: turnout fleet history fleet.turnout phone-17
    """
    with Scheduler.open(file, read_only=True) as scheduler:
        turns, reliability = scheduler.history(client), scheduler.reliability(client)
        owed = _owed(scheduler, client)
    if json:
        rows = [_turn_dict(turn) for turn in turns]
        print_json({"client": client, "reliability": reliability, "owed": owed, "turns": rows})
        return
    suffix = "" if owed is None else f", owed {owed:.2f} turns"
    Console().print(_turns_table(turns, client))
    Console(highlight=False).print(f"{len(turns)} turns, reliability {reliability:.2f}{suffix}")


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
    with Scheduler.open(file, read_only=True) as scheduler:
        lines = (f"{json_module.dumps(event, ensure_ascii=False)}\n" for event in scheduler.export())
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


def _status_rows(found: SchedulerStatus) -> Iterator[tuple[str, list[str]]]:
    yield "clients", [f"{found.clients:,}, {found.retired:,} of them retired"]
    if found.is_open:
        yield "round", [f"{found.round}, open for {found.elapsed:.1f} s; {_deadline(found)}"]
        yield "reported", [f"{len(found.arrived)} of {found.wanted} required", *_shorten(found.arrived)]
        pending = f"{len(found.out)} since {found.elapsed:.1f} s" if found.out else "none"
        yield "pending", [pending, *_shorten(found.out)]
    else:
        yield "round", [f"{found.round} is closed, no round is open" if found.round else "no round was opened yet"]
    lists = {
        "failed": [f"{client}: {why}" for client, why in found.failed.items()],
        "behind": [f"{client} is owed {turns:.2f} turns" for client, turns in found.behind.items()],
        "backing off": [f"{client} until round {last}, inclusive" for client, last in found.backing_off.items()],
    }
    yield from ((heading, _shorten(lines)) for heading, lines in lists.items() if lines)
    if found.certificate_holds is not None:
        kept = "kept, except for the turns owed"
        yield "promise", [kept if found.certificate_holds else "BROKEN: see turnout fleet certificate"]
    if found.notices:
        yield "notes", found.notices


def _deadline(found: SchedulerStatus) -> str:
    if found.deadline is None:
        return "no deadline"
    left = found.deadline - found.elapsed
    relative = f"{left:.1f} s left" if left > 0 else f"exceeded by {-left:.1f} s"
    return f"deadline {found.deadline:.1f} s, {relative}"


def _shorten(lines: list[str]) -> list[str]:
    """Returns the first lines, and the number of the others."""
    return lines if len(lines) <= MAX_SHOWN else [*lines[:MAX_SHOWN], f"and {len(lines) - MAX_SHOWN:,} more"]


def _print_certificate(clients: list[dict[str, Any]], found: Certificate) -> None:
    table = _table("client", "turns", "promised", "owed", "forfeited", "kept")
    for client in clients:
        numbers = [f"{client[name]:,.2f}" for name in ("promised", "owed", "forfeited")]
        kept = "yes" if client["kept"] else "NO"
        table.add_row(printable(client["client"]), f"{client['turns']:,}", *numbers, kept)
    Console().print(table)
    console = Console(highlight=False, soft_wrap=True)
    count, forfeited = len(found.turns), float(found.forfeited.sum())
    if len(clients) < count:
        console.print(f"The {len(clients)} of {count:,} clients that are owed most; --all shows all.")
    if forfeited:
        console.print(
            f"{forfeited:,.2f} turns were forfeited to the cap: raise max_owed or lower speed_weight in a new fleet."
        )
    if found.books_balance:
        console.print(f"The certificate holds for all {count:,} clients: turns ≥ promised − owed − forfeited.")
    else:
        broken = int((~found.balanced).sum())
        console.print(f"The certificate is broken for {broken:,} of {count:,} clients: run turnout fleet doctor.")


def _print_findings(findings: list[Finding], file: Path, intact: bool) -> None:
    marks = {True: "intact", False: "DAMAGED", None: ""}
    table = _table("part", "", "finding", title=str(file))
    for finding in findings:
        table.add_row(finding.part, marks[finding.ok], printable(finding.message))
    Console().print(table)
    console = Console(highlight=False, soft_wrap=True)
    remedies = dict.fromkeys(finding.remedy for finding in findings if finding.ok is False and finding.remedy)
    for remedy in remedies:
        console.print(printable(f"To do: {remedy}."))
    console.print("The file is intact." if intact else "The file is damaged.")


def _owed(scheduler: Scheduler, client: str) -> float | None:
    """Returns the turns owed to a client, or None if the policy guarantees no rate."""
    try:
        return float(scheduler.certificate().owed[scheduler.rows([client])[0]])
    except SettingError:
        return None


def _turns_table(turns: list[Turn], client: str) -> Table:
    """Returns the table of a client's turns, with a column for losses if the client reported any."""
    has_losses = any(turn.loss is not None for turn in turns)
    heading = ["loss"] if has_losses else []
    headings = ("round", "outcome", "seconds", *heading, "why", "late after", "reported (UTC)")
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


def _turn_dict(turn: Turn) -> dict[str, Any]:
    return {
        "round": turn.round,
        "outcome": turn.kind or "out",
        "seconds": turn.seconds,
        "loss": turn.loss,
        "why": turn.why,
        "at": turn.at,
        "late_seconds": turn.late_seconds,
        "late_at": turn.late_at,
    }


def _table(*headings: str, title: str | Text = "", show_header: bool = True) -> Table:
    numbers = ("round", "turns", "promised", "owed", "forfeited", "seconds", "loss", "late after")
    table = Table(title=title or None, show_header=show_header)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
