"""`turnout replay`: the recorded offers under another policy or setting."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.analysis.replay import Figure, Replayed, recorded
from turnout.analysis.replay import replay as replayed
from turnout.cli.options import JsonOption, SettingOption, contenders, print_json, progress_bar

SHOWN = {
    "mean_round": ("mean round, s", 2),
    "p95_round": ("95 % of rounds within, s", 2),
    "least_share": ("share of rounds, least chosen", 3),
    "worst_debt": ("worst debt, turns", 2),
    "jain": ("Jain index of turns", 3),
    "other_choices": ("choices that differ", 0),
    "other_rounds": ("rounds with another cohort", 0),
}


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of a live fleet, or a store of runs.")],
    policy: Annotated[str | None, typer.Option(help="By default the recorded one, for other settings.")] = None,
    settings: SettingOption = None,
    run: Annotated[int | None, typer.Option(help="Which run of the store, as turnout runs list shows it.")] = None,
    draws: Annotated[int, typer.Option(min=2, help="How often what nobody recorded is drawn.")] = 20,
    json: JsonOption = False,
) -> None:
    """What another policy, or other settings, would have made of recorded rounds.

    Says of every figure whether it is exact or estimated, with a 95 % interval. Nothing is changed.
    """
    record = recorded(file, run)
    name = policy or record.policy
    given = dict(contenders([name], None, settings, None, None, ())[0].settings)
    with progress_bar() as progress:
        task = progress.add_task("Playing the record again", total=None)
        found = replayed(
            record,
            name,
            given,
            draws=draws,
            watch=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if json:
        told = {**asdict(found), "figures": {one.name: one._asdict() for one in found.figures}}
        print_json({"recorded": {"policy": record.policy, "settings": dict(record.settings)}, **told})
        return
    _print(found, record.where, record.policy)


def _print(found: Replayed, where: str, policy: str) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    again = f"{found.policy} ({settings})" if settings else found.policy
    console.print(f"{where}: {found.rounds} rounds, {found.choices:,} choices by {policy}; replayed by {again}")
    table = Table()
    for heading in ("", "recorded", "replayed", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for one in found.figures:
        words, digits = SHOWN[one.name]
        was = "" if one.name.startswith("other") else f"{one.recorded:.{digits}f}"
        table.add_row(words, was, f"{one.replayed:.{digits}f}", _sure(one, digits))
    Console().print(table)
    if found.known_times < 1:
        console.print(f"{found.known_times:.0%} of the replay's times were recorded; the others were drawn:")
    for note in found.notes:
        console.print(f"  {note}")


def _sure(one: Figure, digits: int) -> str:
    return "exact" if one.exact else f"estimated ± {one.half_width:.{digits}f}"
