"""`turnout explain`: why a client was chosen, or was not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnout.analysis.explain import explain_run
from turnout.cli.options import JsonOption, print_json
from turnout.errors import SettingError
from turnout.policies.explain.explanation import Explanation
from turnout.scheduler import Scheduler, is_fleet
from turnout.store import RunStore

SHOWN = {
    "seconds": ("its time, as the policy saw it", "s"),
    "owed": ("what it is owed", "turns"),
    "threshold": ("slowest time allowed", "s"),
    "objective": ("objective of the cohort", "turns"),
    "margin": ("margin", "turns"),
    "longer": ("the round would be longer by", "s"),
    "worth": ("which is worth", "turns"),
    "missing_turns": ("it lacked", "turns"),
    "rounds_until": ("rounds until it has earned that", ""),
}


def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A fleet, or a store of runs.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Its id; in a store of runs its row, from 0.")],
    round_: Annotated[int | None, typer.Option("--round", min=1, help="By default the newest.")] = None,
    run: Annotated[int | None, typer.Option(min=1, help="The run, in a store; by default the only one.")] = None,
    json: JsonOption = False,
) -> None:
    """Why a client was chosen in a round, and by what margin; or why not, and how many more turns owed it needed."""
    found = _of_fleet(file, client, round_, run) if is_fleet(file) else _of_run(file, client, round_, run)
    if json:
        print_json(asdict(found))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(_shown(found.sentence))
    table = Table(show_header=False)
    for name, (words, unit) in SHOWN.items():
        value = getattr(found, name)
        if value is not None:
            table.add_row(words, f"{value:,.4g} {unit}".rstrip() if isinstance(value, float) else f"{value:,}")
    if found.instead:
        who = "who would come instead" if found.standing == "chosen" else "who would lose its place"
        table.add_row(who, _shown(", ".join(found.instead)))
    if table.row_count:
        Console().print(table)


def _of_fleet(file: Path, client: str, round_: int | None, run: int | None) -> Explanation:
    if run is not None:
        raise SettingError(f"{file} is a live fleet, which has no runs: leave --run out")
    with Scheduler.open(file, read_only=True) as scheduler:
        return scheduler.explain(client, round_)


def _of_run(file: Path, client: str, round_: int | None, run: int | None) -> Explanation:
    with RunStore(file, read_only=True) as store:
        held = [one.id for one in store.runs()]
        if run is None and len(held) != 1:
            raise SettingError(f"{file} holds {len(held)} runs: choose one with --run; `turnout runs list` shows them")
        row = client.removeprefix("client ").removeprefix("c")
        if not row.isdecimal():
            raise SettingError(f"clients of a run are known by their rows, such as 17, not by {client!r}")
        return explain_run(store, held[0] if run is None else run, int(row), round_)


def _shown(words: str) -> Text:
    """Ids as they are: no markup, and nothing that a terminal obeys."""
    return Text("".join(one if one.isprintable() else ascii(one)[1:-1] for one in words))
