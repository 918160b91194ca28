"""`turnout fleet replay`: recorded rounds under another policy or other settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.completion import complete_policies
from turnout.cli.lab.plans import contenders
from turnout.cli.naming import apply_settings
from turnout.cli.options import JsonOption, SettingOption, print_json, progress_bar
from turnout.counting import counted
from turnout.lab.analysis.replay.records import Recorded, recorded
from turnout.lab.analysis.replay.replay import Figure, Replayed
from turnout.lab.analysis.replay.replay import replay as replayed
from turnout.lab.analysis.statistics import format_interval

#: Row headings and decimal places of the figures of a replay.
ROWS = {
    "updates_per_second": ("updates per second", 4),
    "mean_round": ("mean round, s", 2),
    "p95_round": ("95 % of rounds within, s", 2),
    "least_share": ("least share", 3),
    "largest_shortfall": ("turns behind, at any time", 2),
    "shortfall_at_end": ("turns behind, at the end", 2),
    "worst_debt": ("most turns owed", 2),
    "jain": ("Jain index of turns", 3),
    "other_choices": ("selections that differ", 0),
    "other_rounds": ("rounds with another cohort", 0),
}


#: The headings that differ without rounds.
SLOT_HEADINGS = {"mean_round": "mean turn, s", "p95_round": "95 % of turns within, s"}


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of a live fleet, or store of runs.")],
    policy: Annotated[
        str | None,
        typer.Option(help="Name of the policy; by default the recorded one.", autocompletion=complete_policies),
    ] = None,
    settings: SettingOption = None,
    run: Annotated[
        int | None, typer.Option(help="Number of the run in a store, as `turnout runs show` shows it.")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Number of samples of times that were not recorded.")] = 20,
    json: JsonOption = False,
) -> None:
    """Replay recorded rounds, or turns without rounds, under another policy or other settings, and compare.

    Each figure is marked as exact, or as estimated with a 95 % prediction interval. The file is not changed.

    Example: turnout fleet replay fleet.turnout --policy fair-pace --set tolerance=2
    """
    record = recorded(file, run)
    name, given = record.policy, _recorded_with(record, settings or [])
    if policy is not None:
        plan = contenders([policy], None, settings, None, None, ())[0]
        name, given = plan.policy, dict(plan.settings)
    with progress_bar() as progress:
        task = progress.add_task("Replaying", total=None)
        found = replayed(
            record,
            name,
            given,
            draws=draws,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if json:
        result = {**asdict(found), "figures": {figure.name: figure._asdict() for figure in found.figures}}
        result["status"] = found.status
        print_json({"recorded": {"policy": record.policy, "settings": dict(record.settings)}, **result})
        return
    _print(found, record.where, record.policy)


def _recorded_with(record: Recorded, settings: Sequence[str]) -> dict[str, Any]:
    """Returns what --set changes in the settings of the recorded policy, whose name comes from a file."""
    ((_, changed),) = apply_settings([(record.policy, dict(record.settings))], settings, overwrite=True)
    recorded_settings = dict(record.settings)
    return {
        name: value
        for name, value in changed.items()
        if name not in recorded_settings or recorded_settings[name] != value
    }


def _print(found: Replayed, where: str, policy: str) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    other = f"{found.policy} ({settings})" if settings else found.policy
    given = f"{counted(found.rounds, 'round')}, {counted(found.choices, 'selection')}"
    if found.slots is not None:
        given = f"{counted(found.rounds, 'turn')} in {counted(found.slots, 'slot')}, given"
    console.print(f"{where}: {given} by {policy}; replayed by {other}")
    console.print(f"promise: {found.promise}")
    table = Table()
    for heading in ("", "recorded", "replayed", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in found.figures:
        heading, digits = ROWS[figure.name]
        heading = heading if found.slots is None else SLOT_HEADINGS.get(figure.name, heading)
        if figure.name == "least_share":
            heading = f"{heading} {found.share_of}"
        value = "" if figure.name.startswith("other") else format_interval(figure.recorded, math.nan, digits)
        table.add_row(heading, value, format_interval(figure.replayed, math.nan, digits), _accuracy(figure, digits))
    table.add_row("promise, at the end", found.recorded_status, found.status, _certainty(found))
    Console().print(table)
    console.print(f"recorded, {found.recorded_promise}")
    console.print(f"replayed, {found.replayed_promise}")
    if found.known_times < 1:
        console.print(f"{found.known_times:.0%} of the exchange times in the replay were recorded, the others sampled:")
    for note in found.notes:
        console.print(f"  {note}")


def _accuracy(figure: Figure, digits: int) -> str:
    if figure.exact:
        return "exact"
    text = format_interval(figure.replayed, figure.half_width, digits, limits=figure.limits)
    return f"estimated {text.partition(' ')[2]}"


def _certainty(found: Replayed) -> str:
    """Returns whether the status is exact, or how many replays ended with each status."""
    if found["shortfall_at_end"].exact:
        return "exact"
    return (
        f"estimated: {', '.join(f'{status} in {count}' for status, count in found.statuses.items())} of {found.draws}"
    )
