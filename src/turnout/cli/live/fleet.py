"""`turnout fleet`: what the file of a live fleet holds, also while its scheduler is at work."""

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

from turnout.cli.options import JsonOption, print_json
from turnout.errors import SettingError
from turnout.kernel.fairness import Certificate
from turnout.scheduler import Finding, Scheduler, SchedulerStatus, Turn, examine
from turnout.store.atomic import atomic_write

fleet = typer.Typer(no_args_is_help=True, help="Look into the file of a live fleet; nothing is ever changed.")

FleetArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The fleet, such as fleet.turnout.")]
SHOWN = 20


@fleet.command()
def status(file: FleetArgument, json: JsonOption = False) -> None:
    """Where the fleet stands: the open round, who is out, who is behind, who rests."""
    with Scheduler.open(file, read_only=True) as scheduler:
        found = scheduler.status()
    if json:
        print_json(asdict(found))
        return
    table = _table("", "", title=str(file), show_header=False)
    for what, lines in _rows(found):
        table.add_row(what, Text("\n").join(_shown(line) for line in lines))
    Console().print(table)


@fleet.command()
def certificate(
    file: FleetArgument,
    every: Annotated[bool, typer.Option("--all", help=f"Show all clients; by default the {SHOWN} worst.")] = False,
    json: JsonOption = False,
) -> None:
    """What each client was promised and what it got, the worst first.

    Exit code 0 if the certificate holds, 1 if it is broken.
    """
    with Scheduler.open(file, read_only=True) as scheduler:
        found, ids = scheduler.certificate(), scheduler.clients
    worst = np.lexsort((-found.forfeited_units, -found.owed_units, found.kept))
    shown = worst if every else worst[:SHOWN]
    clients = [
        {
            "client": ids[row],
            "turns": int(found.turns[row]),
            "promised": float(found.promised[row]),
            "owed": float(found.owed[row]),
            "forfeited": float(found.forfeited[row]),
            "kept": bool(found.kept[row]),
        }
        for row in shown.tolist()
    ]
    if json:
        print_json({"holds": found.holds, "clients": clients, "of": len(ids)})
    else:
        _print_certificate(clients, found)
    if not found.holds:
        raise typer.Exit(1)


@fleet.command()
def history(
    file: FleetArgument,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its id.")],
    json: JsonOption = False,
) -> None:
    """All turns of a client, its reliability, and what it is owed."""
    with Scheduler.open(file, read_only=True) as scheduler:
        turns, reliability = scheduler.history(client), scheduler.reliability(client)
        owed = _owed(scheduler, client)
    if json:
        told = {"client": client, "reliability": reliability, "owed": owed, "turns": [_told(turn) for turn in turns]}
        print_json(told)
        return
    owing = "" if owed is None else f", owed {owed:.2f} turns"
    Console().print(_turns_table(turns, client))
    Console(highlight=False).print(f"{len(turns)} turns, reliability {reliability:.2f}{owing}")


@fleet.command()
def export(
    file: FleetArgument,
    out: Annotated[Path | None, typer.Option(help="Into this file; by default to standard output.")] = None,
) -> None:
    """Everything that happened, one event a line, as JSON."""
    if out is not None and out.exists() and out.samefile(file):
        raise SettingError(f"{out} is the fleet itself: export into another file")
    with Scheduler.open(file, read_only=True) as scheduler:
        lines = (f"{json_module.dumps(event, ensure_ascii=False)}\n" for event in scheduler.export())
        if out is not None:
            with atomic_write(out) as whole:
                whole.writelines(line.encode() for line in lines)
            return
        for line in lines:
            typer.echo(line, nl=False)


@fleet.command()
def doctor(file: FleetArgument, json: JsonOption = False) -> None:
    """Check everything that can be checked, and say what is wrong and what to do.

    Exit code 0 if the file is sound, 1 if it is not.
    """
    findings = examine(file)
    sound = all(one.sound is not False for one in findings)
    if json:
        print_json({"sound": sound, "findings": [asdict(one) for one in findings]})
    else:
        _print_findings(findings, file, sound)
    if not sound:
        raise typer.Exit(1)


def _rows(found: SchedulerStatus) -> Iterator[tuple[str, list[str]]]:
    yield "clients", [f"{found.clients:,}, {found.retired:,} of them retired"]
    if found.is_open:
        yield "round", [f"{found.round} is open for {found.elapsed:.1f} s; {_until(found)}"]
        yield "back", [f"{len(found.arrived)} of {found.wanted} wanted", *_some(found.arrived)]
        yield "out", [f"{len(found.out)} for {found.elapsed:.1f} s" if found.out else "nobody", *_some(found.out)]
    else:
        yield "round", [f"{found.round} is closed, none is open" if found.round else "none was opened yet"]
    told = {
        "failed": [f"{client}: {why}" for client, why in found.failed.items()],
        "behind": [f"{client} is owed {turns:.2f} turns" for client, turns in found.behind.items()],
        "resting": [f"{client} up to and with round {last}" for client, last in found.resting.items()],
    }
    yield from ((what, _some(lines)) for what, lines in told.items() if lines)
    if found.certificate_holds is not None:
        yield "promise", ["kept, but for what is owed" if found.certificate_holds else "BROKEN: see the certificate"]
    if found.notices:
        yield "notes", found.notices


def _until(found: SchedulerStatus) -> str:
    if found.deadline is None:
        return "there is no deadline"
    left = found.deadline - found.elapsed
    when = f"{left:.1f} s are left" if left > 0 else f"it is over since {-left:.1f} s"
    return f"its deadline is after {found.deadline:.1f} s, {when}"


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN:,} more"]


def _print_certificate(clients: list[dict[str, Any]], found: Certificate) -> None:
    table = _table("client", "turns", "promised", "owed", "forfeited", "kept")
    for one in clients:
        numbers = [f"{one[name]:,.2f}" for name in ("promised", "owed", "forfeited")]
        table.add_row(_shown(one["client"]), f"{one['turns']:,}", *numbers, "yes" if one["kept"] else "NO")
    Console().print(table)
    console = Console(highlight=False, soft_wrap=True)
    of, forfeited = len(found.turns), float(found.forfeited.sum())
    if len(clients) < of:
        console.print(f"The worst {len(clients)} of {of:,} clients; --all shows the others.")
    if forfeited:
        console.print(f"The cap took {forfeited:,.2f} turns: raise max_owed or lower speed_weight in a fleet to come.")
    if found.holds:
        console.print(f"The certificate holds for all {of:,}: turns taken ≥ promised − owed − forfeited.")
    else:
        broken = int((~found.kept).sum())
        console.print(f"The certificate is broken for {broken:,} of {of:,} clients: see turnout fleet doctor.")


def _print_findings(findings: list[Finding], file: Path, sound: bool) -> None:
    marks = {True: "sound", False: "NOT SOUND", None: ""}
    table = _table("part", "", "what was found", title=str(file))
    for one in findings:
        table.add_row(one.part, marks[one.sound], _shown(one.words))
    Console().print(table)
    console = Console(highlight=False, soft_wrap=True)
    remedies = dict.fromkeys(one.remedy for one in findings if one.sound is False and one.remedy)
    for remedy in remedies:
        console.print(_shown(f"To do: {remedy}."))
    console.print("The file is sound." if sound else "The file is not sound.")


def _owed(scheduler: Scheduler, client: str) -> float | None:
    """None where the policy promises nothing."""
    try:
        return float(scheduler.certificate().owed[scheduler.rows([client])[0]])
    except SettingError:
        return None


def _turns_table(turns: list[Turn], client: str) -> Table:
    """With the losses, if any was told."""
    has_losses = any(turn.loss is not None for turn in turns)
    heading = ["loss"] if has_losses else []
    table = _table("round", "outcome", "seconds", *heading, "why", "late time", "reported (UTC)", title=_shown(client))
    for turn in turns:
        loss = ["" if turn.loss is None else f"{turn.loss:.4g}"] if has_losses else []
        table.add_row(
            str(turn.round),
            turn.kind or "out",
            _number(turn.seconds),
            *loss,
            _shown(turn.why or ""),
            _number(turn.late_seconds),
            (turn.late_at or turn.at or "")[:19].replace("T", " "),
        )
    return table


def _told(turn: Turn) -> dict[str, Any]:
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
    numbers = ("round", "turns", "promised", "owed", "forfeited", "seconds", "loss", "late time")
    table = Table(title=title or None, show_header=show_header)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left")
    return table


def _shown(words: str) -> Text:
    """What clients have told, as it is: no markup, and nothing that a terminal obeys."""
    return Text("".join(one if one.isprintable() else ascii(one)[1:-1] for one in words))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
