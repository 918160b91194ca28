"""`turnout fleet replay`: recorded rounds under another policy or other settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from turnout.cli.lab.plans import contenders
from turnout.cli.naming import apply_settings
from turnout.cli.options import (
    JsonOption,
    Location,
    RunOption,
    SettingOption,
    parse_location,
    print_json,
    say,
    showing_progress,
)
from turnout.cli.tables import print_table
from turnout.counting import pluralize
from turnout.dashboard.sources.recording import read_recording
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
    file: Annotated[
        Location,
        typer.Argument(
            metavar="STORE", parser=parse_location, help="File or address of a live fleet, or file of a store of runs."
        ),
    ],
    policy: Annotated[str | None, typer.Option(help="Name of the policy; by default the recorded one.")] = None,
    settings: SettingOption = None,
    run: RunOption = None,
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
    with showing_progress("Replaying") as watch:
        result = replay_rounds(record, name, given, draws=draws, watch=watch)
    if json:
        figures = {figure.name: figure._asdict() for figure in result.figures}
        recorded = {"policy": record.policy, "settings": dict(record.settings)}
        print_json({"recorded": recorded, **asdict(result), "figures": figures, "status": result.status})
        return
    _print(result, record.where, record.policy)


def _recorded_with(record: Recording, settings: Sequence[str]) -> dict[str, Any]:
    """Returns what --set changes in the settings of the recorded policy, whose name comes from a file."""
    known = dict(record.settings)
    ((_, changed),) = apply_settings([(record.policy, known)], settings, overwrite=True)
    return {name: value for name, value in changed.items() if name not in known or known[name] != value}


def _print(result: ReplayResult, where: str, policy: str) -> None:
    settings = ", ".join(f"{name}={value}" for name, value in result.settings.items())
    other = f"{result.policy} ({settings})" if settings else result.policy
    given = f"{pluralize(result.rounds, 'round')}, {pluralize(result.choices, 'selection')}"
    if result.slots is not None:
        given = f"{pluralize(result.rounds, 'turn')} in {pluralize(result.slots, 'slot')}, given"
    say(f"{where}: {given} by {policy}; replayed by {other}", f"promise: {result.promise}")
    rows = [_row(figure, result) for figure in result.figures]
    rows.append(("promise, at the end", result.recorded_status, result.status, _certainty(result)))
    print_table(("", "recorded>", "replayed>", ""), rows)
    say(f"recorded, {result.recorded_promise}", f"replayed, {result.replayed_promise}")
    if result.known_times < 1:
        say(f"{result.known_times:.0%} of the exchange times in the replay were recorded, the others sampled:")
    say(*(f"  {note}" for note in result.notes))


def _row(figure: ReplayFigure, result: ReplayResult) -> tuple[str, str, str, str]:
    heading, digits = ROWS[figure.name]
    heading = heading if result.slots is None else SLOT_HEADINGS.get(figure.name, heading)
    if figure.name == "least_share":
        heading = f"{heading} {result.share_of}"
    recorded = "" if figure.name.startswith("other") else format_interval(figure.recorded, math.nan, digits)
    return heading, recorded, format_interval(figure.replayed, math.nan, digits), _accuracy(figure, digits)


def _accuracy(figure: ReplayFigure, digits: int) -> str:
    if figure.exact:
        return "exact"
    text = format_interval(figure.replayed, figure.half_width, digits, limits=figure.limits)
    return f"estimated {text.partition(' ')[2]}"


def _certainty(result: ReplayResult) -> str:
    """Returns whether the status is exact, or how many replays ended with each status."""
    if result["shortfall_at_end"].exact:
        return "exact"
    return f"estimated: {', '.join(f'{end} in {count}' for end, count in result.statuses.items())} of {result.draws}"
