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
from turnout.cli.fleet.recording import read_recording
from turnout.cli.lab.plans import contenders
from turnout.cli.naming import apply_settings
from turnout.cli.options import JsonOption, SettingOption, print_json, progress_bar
from turnout.counting import pluralize
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.replay.replay import ReplayFigure, ReplayResult
from turnout.lab.analysis.replay.replay import replay as replay_rounds
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
    record = read_recording(file, run)
    name, given = record.policy, _recorded_with(record, settings or [])
    if policy is not None:
        plan = contenders([policy], None, settings, None, None, ())[0]
        name, given = plan.policy, dict(plan.settings)
    with progress_bar() as progress:
        task = progress.add_task("Replaying", total=None)
        result = replay_rounds(
            record,
            name,
            given,
            draws=draws,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if json:
        figures = {figure.name: figure._asdict() for figure in result.figures}
        recorded = {"policy": record.policy, "settings": dict(record.settings)}
        print_json({"recorded": recorded, **asdict(result), "figures": figures, "status": result.status})
        return
    _print(result, record.where, record.policy)


def _recorded_with(record: Recording, settings: Sequence[str]) -> dict[str, Any]:
    """Returns what --set changes in the settings of the recorded policy, whose name comes from a file."""
    ((_, changed),) = apply_settings([(record.policy, dict(record.settings))], settings, overwrite=True)
    recorded_settings = dict(record.settings)
    return {
        name: value
        for name, value in changed.items()
        if name not in recorded_settings or recorded_settings[name] != value
    }


def _print(result: ReplayResult, where: str, policy: str) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = ", ".join(f"{name}={value}" for name, value in result.settings.items())
    other = f"{result.policy} ({settings})" if settings else result.policy
    given = f"{pluralize(result.rounds, 'round')}, {pluralize(result.choices, 'selection')}"
    if result.slots is not None:
        given = f"{pluralize(result.rounds, 'turn')} in {pluralize(result.slots, 'slot')}, given"
    console.print(f"{where}: {given} by {policy}; replayed by {other}")
    console.print(f"promise: {result.promise}")
    table = Table()
    for heading in ("", "recorded", "replayed", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in result.figures:
        heading, digits = ROWS[figure.name]
        heading = heading if result.slots is None else SLOT_HEADINGS.get(figure.name, heading)
        if figure.name == "least_share":
            heading = f"{heading} {result.share_of}"
        value = "" if figure.name.startswith("other") else format_interval(figure.recorded, math.nan, digits)
        table.add_row(heading, value, format_interval(figure.replayed, math.nan, digits), _accuracy(figure, digits))
    table.add_row("promise, at the end", result.recorded_status, result.status, _certainty(result))
    Console().print(table)
    console.print(f"recorded, {result.recorded_promise}")
    console.print(f"replayed, {result.replayed_promise}")
    if result.known_times < 1:
        console.print(
            f"{result.known_times:.0%} of the exchange times in the replay were recorded, the others sampled:"
        )
    for note in result.notes:
        console.print(f"  {note}")


def _accuracy(figure: ReplayFigure, digits: int) -> str:
    if figure.exact:
        return "exact"
    text = format_interval(figure.replayed, figure.half_width, digits, limits=figure.limits)
    return f"estimated {text.partition(' ')[2]}"


def _certainty(result: ReplayResult) -> str:
    """Returns whether the status is exact, or how many replays ended with each status."""
    if result["shortfall_at_end"].exact:
        return "exact"
    return (
        f"estimated: {', '.join(f'{status} in {count}' for status, count in result.statuses.items())} of {result.draws}"
    )
