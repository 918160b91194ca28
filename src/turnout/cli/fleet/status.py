"""`turnout fleet status | history | export | explain`: reads a fleet, also while its scheduler is running."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.options import ClientArgument, FleetArgument, JsonOption, OutOption, prepare_file, print_json, say
from turnout.cli.tables import print_table
from turnout.counting import format_duration, pluralize
from turnout.errors import SettingError
from turnout.kernel.certificate import Certificate, TimeUnit
from turnout.kernel.rounds import LOSS
from turnout.live import FleetReader, SchedulerStatus, Turn
from turnout.live._internals import journal_of
from turnout.policies.explain.explanation import Explanation
from turnout.storage.files.atomic import atomic_write

MAX_SHOWN = 20


def status(file: FleetArgument, json: JsonOption = False) -> None:
    """Show the open round, pending, failed and late clients, the promise and who is behind, and back-offs.

    Without rounds, it shows the running turns, with their ages and deadlines. A round that is overdue is a warning.

    Example: turnout fleet status fleet.turnout
    """
    with FleetReader(file) as reader, reader.reading():
        now = reader.status()
        training = [] if now.slots is None else _training(reader)
        backed_off = reader.state().fleet.counters.rounds_backed_off(now.round - now.is_open)
        scheduler = journal_of(reader).file.writer
        rounds_off = {client: int(backed_off[row]) for row, client in enumerate(reader.clients) if backed_off[row]}
    overdue = max(now.elapsed - now.deadline, 0.0) if now.is_open and now.deadline is not None else None
    if json:
        print_json({**now.to_dict(), "scheduler": scheduler, "overdue": overdue, "backed_off": rounds_off})
        return
    print_table((), _status_rows(now, training, rounds_off, scheduler), title=str(file))
    if overdue:
        stopped = "" if scheduler else ", and no scheduler is running: start the server again, which continues with it"
        say(f"Round {now.round:,} is overdue by {format_duration(overdue)}{stopped}.")
    elif now.slots is not None and now.out and scheduler is None:
        say("Turns are running, but no scheduler is: start the server again, which continues with them.")


def history(file: FleetArgument, client: ClientArgument, json: JsonOption = False) -> None:
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
    if json:
        behind, owed = (None, None) if promise is None else (float(promise.behind[row]), float(promise.owed[row]))
        known = {"client": client, "reliability": reliability, "counted": paid, "behind": behind, "owed": owed}
        print_json({**known, "turns": [turn.to_dict() for turn in turns]})
        return
    _print_turns(turns, client, unit)
    suffix = "" if promise is None else f"; {_promise_text(promise, int(row))}"
    count_as = "counts as a turn" if paid == 1 else "count as turns"
    selections = f"selected {pluralize(len(turns), 'time')}, of which {paid:,} {count_as}"
    say(f"{selections}, reliability {reliability:.2f}{suffix}")


def export(file: FleetArgument, out: OutOption = None) -> None:
    """Write all events of the fleet as JSON lines, one event per line.

    Example: turnout fleet export fleet.turnout --out events.jsonl
    """
    if out is not None and out.exists() and isinstance(file, Path) and out.samefile(file):
        raise SettingError(f"{out} is the fleet itself: export to another file")
    with FleetReader(file) as reader, closing(reader.export()) as events:
        prepare_file(out, ".jsonl")
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
    now: SchedulerStatus, training: list[str], rounds_off: dict[str, int], scheduler: str | None
) -> Iterator[tuple[str, str | Sequence[str]]]:
    yield "scheduler", scheduler or "none is running"
    yield "clients", f"{now.clients:,}, {now.retired:,} of them retired"
    if now.is_open:
        yield "round", f"{now.round}, open {_age(now.deadline, now.elapsed)}"
        yield "reported", [f"{len(now.arrived)} of {now.target_size} required", *_shorten(now.arrived)]
        pending = f"{len(now.out)} since {format_duration(now.elapsed)}" if now.out else "none"
        yield "pending", [pending, *_shorten(now.out)]
    elif now.slots is not None:
        yield "turns", f"{now.round:,} were given; {pluralize(len(now.out), 'slot', 'are', of=now.slots)} in use"
    else:
        yield "round", f"{now.round} is closed, no round is open" if now.round else "no round was opened yet"
    unit = TimeUnit.of(now.slots)
    lists = {
        "training": training,
        "failed": [f"{client}: {why}" for client, why in now.failed.items()],
        "behind": [f"{client} by {turns:.2f} turns" for client, turns in now.behind.items()],
        "backing off": [
            f"{client} until {unit.turn} {last:,}, inclusive; {unit.pluralize(rounds_off.get(client, 0))} so far"
            for client, last in now.backing_off.items()
        ],
        "promise": [] if now.promise_sentence is None else [now.promise_sentence],
    }
    yield from ((heading, _shorten(lines)) for heading, lines in lists.items() if lines)
    if now.notices:
        yield "notes", now.notices


def _age(deadline: float | None, elapsed: float) -> str:
    if deadline is None:
        return f"for {format_duration(elapsed)}; no deadline"
    left = deadline - elapsed
    relative = f"{format_duration(left)} left" if left > 0 else f"exceeded by {format_duration(-left)}"
    return f"for {format_duration(elapsed)}; deadline {format_duration(deadline)}, {relative}"


def _shorten(lines: list[str]) -> list[str]:
    """Returns the first lines, and the number of the others."""
    return lines if len(lines) <= MAX_SHOWN else [*lines[:MAX_SHOWN], f"and {len(lines) - MAX_SHOWN:,} more"]


def _promise_text(promise: Certificate, row: int) -> str:
    """Says how many turns a client was promised and got, and the status of its promise."""
    behind = float(promise.behind[row])
    distance = f"{behind:.2f} turns behind" if behind >= 0 else f"{-behind:.2f} turns ahead"
    return (
        f"promised {promise.promised[row]:,.2f} turns, got {promise.turns[row]:,}, {distance}: {promise.statuses[row]}"
    )


def _print_turns(turns: list[Turn], client: str, unit: str) -> None:
    """Prints the table of a client's turns, with a column for losses and each signal if the client reported any."""
    reported = [{LOSS: turn.loss, **(turn.signals or {})} for turn in turns]
    names = list(dict.fromkeys(name for own in reported for name, value in own.items() if value is not None))
    headings = (f"{unit}>", "outcome", "seconds>", *(f"{n}>" for n in names), "why", "late after>", "reported (UTC)")
    rows = (
        (
            str(turn.round),
            turn.kind or "pending",
            _number(turn.seconds),
            *(_number(own.get(name), ".4g") for name in names),
            turn.why or "",
            _number(turn.late_seconds),
            (turn.late_at or turn.at or "")[:19].replace("T", " "),
        )
        for turn, own in zip(turns, reported, strict=True)
    )
    print_table(headings, rows, title=client)


def _number(value: float | None, form: str = ",.2f") -> str:
    return "" if value is None else f"{value:{form}}"


#: Row headings and units of the fields of an `Explanation`; None is the unit of its values.
ROWS: dict[str, tuple[str, str | None]] = {
    "seconds": ("exchange time that the policy expected", "s"),
    "usual": ("its usual exchange time", "s"),
    "behind": ("turns behind, this {unit} included", ""),
    "allowed": ("turns that it may be behind", ""),
    "owed": ("owed", None),
    "threshold": ("slowest time allowed", "s"),
    "objective": ("objective of the cohort, slowest time in turns minus owed turns", None),
    "margin": ("margin", None),
    "longer": ("the {turn} would take longer by", "s"),
    "worth": ("which is worth", None),
    "missing_turns": ("missing turns", None),
    "rounds_until": ("{unit}s until it has accrued them", ""),
}
#: The headings that differ for policies that give turns a price in seconds.
PRICE_HEADINGS = {
    "owed": "price of its turn",
    "threshold": "slowest time of the cohort",
    "objective": "objective of the cohort, slowest time minus prices",
    "missing_turns": "missing in its price",
    "rounds_until": "{unit}s until its price is high enough",
}
#: The headings that differ without rounds.
SLOT_HEADINGS = {"threshold": "expected time of the selected client", "objective": "objective of the selected client"}


def explain(
    file: FleetArgument,
    client: ClientArgument,
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="Round, or turn without rounds; by default the newest.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain why a client was selected in a round and by what margin, or what it lacked.

    For fair-pace this is the price of its turn in seconds, for rbcsf the turns that it is owed.

    Example: turnout fleet explain fleet.turnout phone-17 --round 120
    """
    with FleetReader(file) as reader:
        explained = reader.explain(client, round_)
    if json:
        print_json({**asdict(explained), "verdict": explained.verdict})
        return
    if not explained.exact or explained.seconds is None:
        say(explained.sentence)
        return
    say(explained.verdict)
    print_table((), list(_rows(explained)))
    say(f"In words: {explained.sentence}")


def _rows(explained: Explanation) -> Iterator[tuple[str, str]]:
    has_price, unit = explained.unit == "seconds", explained.time_unit
    other = (PRICE_HEADINGS if has_price else {}) | ({} if unit is TimeUnit.ROUND else SLOT_HEADINGS)
    for name, (heading, symbol) in ROWS.items():
        value = getattr(explained, name)
        if value is None or (has_price and name == "worth"):  # seconds are worth themselves
            continue
        if name == ("missing_turns" if explained.outcome == "chosen" else "margin"):  # 0, and what is missing
            continue
        symbol = ("s" if has_price else "turns") if symbol is None else symbol
        number = f"{value:,.4g} {symbol}".rstrip() if isinstance(value, float) else f"{value:,}"
        yield other.get(name, heading).format(unit=unit, turn=unit.turn), number
    if explained.instead:
        heading = "would be selected instead" if explained.outcome == "chosen" else "would not be selected"
        yield heading, ", ".join(explained.instead)
