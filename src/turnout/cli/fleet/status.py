"""`turnout fleet status | history | export`: reads the file of a fleet, also while its scheduler is running."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnout.cli.fleet.promise import behind_words
from turnout.cli.options import FleetArgument, JsonOption, make_table, print_json, printable
from turnout.counting import pluralize
from turnout.errors import SettingError
from turnout.kernel.certificate import Certificate, TimeUnit
from turnout.live import FleetReader, SchedulerStatus, Turn
from turnout.storage.files.atomic import atomic_write

MAX_SHOWN = 20


def status(file: FleetArgument, json: JsonOption = False) -> None:
    """Show the open round, pending, failed and late clients, the promise and who is behind, and back-offs.

    Without rounds, it shows the running turns, with their ages and deadlines.

    Example: turnout fleet status fleet.turnout
    """
    with FleetReader(file) as reader, reader.reading():
        found, ids = reader.status(), reader.state().fleet.ids
        training = [] if found.slots is None else _training(reader)
        promise = None if found.promise is None else reader.certificate()
    if json:
        print_json(found.to_dict())
        return
    table = Table(title=str(file), show_header=False)
    for heading, lines in _status_rows(found, promise, ids, training):
        table.add_row(heading, Text("\n").join(printable(line) for line in lines))
    Console().print(table)


def history(
    file: FleetArgument,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Id of the client.")],
    json: JsonOption = False,
) -> None:
    """Show all turns of a client (times in seconds), its reliability, and how far it is behind its promise.

    Example: turnout fleet history fleet.turnout phone-17
    """
    with FleetReader(file) as reader, reader.reading():
        turns, fleet_ = reader.history(client), reader.state().fleet
        row, promise = fleet_.rows[client], fleet_.certificate()
        reliability = float(fleet_.history.reliability[row])
        guarantee, unit = fleet_.policy.guarantee, fleet_.unit.turn
    is_chosen = guarantee is not None and guarantee.counts == "selected"
    paid = sum(turn.kind == "arrived" or (is_chosen and turn.kind is not None) for turn in turns)
    behind, owed = (None, None) if promise is None else (float(promise.behind[row]), float(promise.owed[row]))
    if json:
        rows = [turn.to_dict() for turn in turns]
        known = {"client": client, "reliability": reliability, "counted": paid, "behind": behind, "owed": owed}
        print_json({**known, "turns": rows})
        return
    suffix = "" if promise is None else f"; {_standing(promise, int(row))}"
    Console().print(_turns_table(turns, client, unit))
    count_as = "counts as a turn" if paid == 1 else "count as turns"
    selections = f"selected {pluralize(len(turns), 'time')}, of which {paid:,} {count_as}"
    Console(highlight=False, soft_wrap=True).print(f"{selections}, reliability {reliability:.2f}{suffix}")


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


def _training(reader: FleetReader) -> list[str]:
    """Returns the running turns of a fleet without rounds, with their ages and deadlines."""
    return [
        f"{turn.id}, turn {running_turn.decision:,}: {_age(running_turn.deadline, running_turn.elapsed)}"
        for running_turn, turn in reader.running()
        if turn.kind is None
    ]


def _status_rows(
    found: SchedulerStatus, promise: Certificate | None, ids: list[str], training: list[str]
) -> Iterator[tuple[str, list[str]]]:
    yield "clients", [f"{found.clients:,}, {found.retired:,} of them retired"]
    if found.is_open:
        yield "round", [f"{found.round}, open {_age(found.deadline, found.elapsed)}"]
        yield "reported", [f"{len(found.arrived)} of {found.target_size} required", *_shorten(found.arrived)]
        pending = f"{len(found.out)} since {found.elapsed:.1f} s" if found.out else "none"
        yield "pending", [pending, *_shorten(found.out)]
    elif found.slots is not None:
        yield (
            "turns",
            [f"{found.round:,} were given; {pluralize(len(found.out), 'slot', 'are', of=found.slots)} in use"],
        )
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


def _standing(promise: Certificate, row: int) -> str:
    """Says how many turns a client was promised and got, and the status of its promise."""
    return (
        f"promised {promise.promised[row]:,.2f} turns, got {promise.turns[row]:,}, "
        f"{behind_words(float(promise.behind[row]))}: {promise.statuses[row]}"
    )


def _turns_table(turns: list[Turn], client: str, unit: str) -> Table:
    """Returns the table of a client's turns, with a column for losses if the client reported any."""
    has_losses = any(turn.loss is not None for turn in turns)
    heading = ["loss>"] if has_losses else []
    headings = (f"{unit}>", "outcome", "seconds>", *heading, "why", "late after>", "reported (UTC)")
    table = make_table(*headings, title=printable(client))
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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
