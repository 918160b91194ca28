"""`turnout fleet amend`: changes settings of a live fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from turnout.cli.options import JsonOption, as_period, print_json, printable
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler

#: The value of an option that switches a setting off.
NONE = "none"


def amend(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of the fleet, such as fleet.turnout.")],
    deadline: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Seconds after which a client is late; `auto`, or `none`."),
    ] = None,
    cohort_size: Annotated[int | None, typer.Option(help="Number of clients to select in a round.")] = None,
    overcommit: Annotated[
        str | None,
        typer.Option(metavar="FACTOR", help="Number of invited clients as a multiple of the cohort size; or `auto`."),
    ] = None,
    tolerance: Annotated[float | None, typer.Option(help="Turns that a client may be behind its promise.")] = None,
    guaranteed_rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Share of the rounds that each client is guaranteed: 0.1, or 1/10."),
    ] = None,
    speed_weight: Annotated[
        float | None, typer.Option(help="Owed turns that a second of round time is worth, for policies with a weight.")
    ] = None,
    allow_infeasible: Annotated[
        bool | None,
        typer.Option(
            "--allow-infeasible/--refuse-infeasible",
            help="Whether a promise is accepted that cannot be kept; by default as the fleet was created.",
        ),
    ] = None,
    keep_rounds: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="For how long rounds are kept: 5000 (rounds), 30d (days), or `all`."),
    ] = None,
    keep_offers: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="For how long offers are kept: 1000 (rounds), 7d (days), or `all`."),
    ] = None,
    persist_statuses: Annotated[
        bool | None,
        typer.Option(
            "--persist-statuses/--no-persist-statuses", help="Whether the statuses of clients are written to the file."
        ),
    ] = None,
    status_ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Without rounds: seconds for which a check-in is kept."),
    ] = None,
    max_staleness: Annotated[
        str | None,
        typer.Option(
            metavar="VERSIONS",
            help="Without rounds: clients during whose turns more versions of the model are expected get turns only if "
            "they must; or `none`.",
        ),
    ] = None,
    updates_per_version: Annotated[
        str | None,
        typer.Option(metavar="UPDATES", help="Without rounds: updates that make a version of the model; or `none`."),
    ] = None,
    window_goal: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICES",
            help="Without rounds: waiting devices from which turns are given at once; or `none`.",
        ),
    ] = None,
    window_seconds: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Without rounds: how long check-ins are gathered; or `none`."),
    ] = None,
    min_present: Annotated[
        int | None, typer.Option(help="Without rounds: clients that must be there for turns to be given.")
    ] = None,
    min_turn_interval: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Without rounds: seconds in which a client is given at most one turn; or `none`."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Change settings of a fleet from the next round on; no scheduler may hold the file, and no round may be open.

    Rounds so far count at the guaranteed rate that they were promised, later ones at the new rate. Turns, debts and
    everything learned stay. The change is recorded: certificates, explanations and replays use the settings of each
    round. A promise that cannot be kept for the clients of the fleet is refused.

    With a period to keep, each round deletes some of what is older; `turnout fleet compact` deletes all of it at once.

    Example: turnout fleet amend fleet.turnout --guaranteed-rate 0.08 --deadline 120
    """
    given: dict[str, Any] = {
        "deadline": None if deadline is None else _number_or_word("deadline", deadline, ("auto", NONE)),
        "cohort_size": cohort_size,
        "overcommit": None if overcommit is None else _number_or_word("overcommit", overcommit, ("auto",)),
        "tolerance": tolerance,
        "guaranteed_rate": guaranteed_rate,
        "speed_weight": speed_weight,
        "allow_infeasible": allow_infeasible,
        "keep_rounds": as_period(keep_rounds),
        "keep_offers": as_period(keep_offers),
        "persist_statuses": persist_statuses,
        "status_ttl": status_ttl,
        "max_staleness": _number_or_none("max_staleness", max_staleness),
        "updates_per_version": _count_or_none("updates_per_version", updates_per_version),
        "window_goal": _count_or_none("window_goal", window_goal),
        "window_seconds": _number_or_none("window_seconds", window_seconds),
        "min_present": min_present,
        "min_turn_interval": _number_or_none("min_turn_interval", min_turn_interval),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise SettingError("nothing to amend: pass a setting, such as --deadline 120 or --guaranteed-rate 0.08")
    for name, value in changes.items():
        if value == ("all" if name in ("keep_rounds", "keep_offers") else NONE):
            changes[name] = None
    with FleetReader(file) as reader:
        features = reader.features  # nothing is selected, so the function that computes them is not needed
    with Scheduler.open(file, features=features) as scheduler:
        changed = scheduler.amend(**changes)
    with FleetReader(file) as reader:
        amendment = reader.amendments[-1] if changed else None
    if json:
        known = {} if amendment is None else {"round": amendment.round, "before": dict(amendment.before)}
        print_json({"changes": {} if amendment is None else dict(amendment.changes), **known})
    elif amendment is None:
        Console(highlight=False, soft_wrap=True).print("Nothing changed: the fleet has these settings already.")
    else:
        Console(highlight=False, soft_wrap=True).print(printable(f"{file}: {amendment.sentence()}."))


def _number_or_none(name: str, text: str | None) -> float | str | None:
    return None if text is None else _number_or_word(name, text, (NONE,))


def _count_or_none(name: str, text: str | None) -> int | str | None:
    if text is None or text == NONE or text.isdecimal():
        return int(text) if text is not None and text != NONE else text
    raise SettingError(f"{name} must be a whole number or {NONE!r}, got {text!r}")


def _number_or_word(name: str, text: str, words: tuple[str, ...]) -> float | str:
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        allowed = " or ".join(repr(word) for word in words)
        raise SettingError(f"{name} must be a number, {allowed}, got {text!r}") from None
