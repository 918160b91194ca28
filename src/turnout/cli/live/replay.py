"""`turnout replay`: recorded rounds under another policy or other settings."""

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

#: Row headings and decimal places of the figures of a replay.
ROWS = {
    "mean_round": ("mean round, s", 2),
    "p95_round": ("95 % of rounds within, s", 2),
    "least_share": ("share of rounds, least selected client", 3),
    "worst_debt": ("most turns owed", 2),
    "jain": ("Jain index of turns", 3),
    "other_choices": ("selections that differ", 0),
    "other_rounds": ("rounds with another cohort", 0),
}


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of a live fleet, or store of runs.")],
    policy: Annotated[str | None, typer.Option(help="Name of the policy; by default the recorded one.")] = None,
    settings: SettingOption = None,
    run: Annotated[
        int | None, typer.Option(help="Number of the run in a store, as `turnout runs list` shows it.")
    ] = None,
    draws: Annotated[int, typer.Option(min=2, help="Number of samples of times that were not recorded.")] = 20,
    json: JsonOption = False,
) -> None:
    """Replay recorded rounds under another policy or other settings, and compare.

    Each figure is marked as exact, or as estimated with a 95 % confidence interval. The file is not changed.

    Example: turnout replay fleet.turnout --policy random
    """
    record = recorded(file, run)
    name = policy or record.policy
    given = dict(contenders([name], None, settings, None, None, ())[0].settings)
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
        print_json({"recorded": {"policy": record.policy, "settings": dict(record.settings)}, **result})
        return
    _print(found, record.where, record.policy)


def _print(found: Replayed, where: str, policy: str) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    other = f"{found.policy} ({settings})" if settings else found.policy
    console.print(f"{where}: {found.rounds} rounds, {found.choices:,} selections by {policy}; replayed by {other}")
    table = Table()
    for heading in ("", "recorded", "replayed", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in found.figures:
        heading, digits = ROWS[figure.name]
        value = "" if figure.name.startswith("other") else f"{figure.recorded:.{digits}f}"
        table.add_row(heading, value, f"{figure.replayed:.{digits}f}", _accuracy(figure, digits))
    Console().print(table)
    if found.known_times < 1:
        console.print(f"{found.known_times:.0%} of the exchange times in the replay were recorded, the others sampled:")
    for note in found.notes:
        console.print(f"  {note}")


def _accuracy(figure: Figure, digits: int) -> str:
    return "exact" if figure.exact else f"estimated ± {figure.half_width:.{digits}f}"
