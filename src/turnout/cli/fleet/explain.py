"""`turnout fleet explain`: why a client was or was not selected."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import JsonOption, print_json, printable
from turnout.errors import SettingError
from turnout.kernel.certificate import TimeUnit
from turnout.lab.analysis.explain import explain_run
from turnout.lab.runs.store import RunStore
from turnout.live import FleetReader
from turnout.live._internals import is_fleet
from turnout.policies.explain.explanation import Explanation

#: Row headings and units of the fields of an `Explanation`, for policies that weigh seconds against owed turns.
ROWS = {
    "seconds": ("exchange time that the policy expected", "s"),
    "owed": ("owed", "turns"),
    "threshold": ("slowest time allowed", "s"),
    "objective": ("objective of the cohort", "turns"),
    "margin": ("margin", "turns"),
    "longer": ("the round would take longer by", "s"),
    "worth": ("which is worth", "turns"),
    "missing_turns": ("missing turns", "turns"),
    "rounds_until": ("rounds until it has accrued them", ""),
}
#: The same for policies that give turns a price in seconds.
PRICE_ROWS = {
    "seconds": ("exchange time that the policy expected", "s"),
    "usual": ("its usual exchange time", "s"),
    "behind": ("turns behind, this round included", ""),
    "allowed": ("turns that it may be behind", ""),
    "owed": ("price of its turn", "s"),
    "threshold": ("slowest time of the cohort", "s"),
    "objective": ("objective of the cohort", "s"),
    "margin": ("margin", "s"),
    "longer": ("the round would take longer by", "s"),
    "missing_turns": ("missing in its price", "s"),
    "rounds_until": ("rounds until its price is high enough", ""),
}


#: The headings that differ without rounds.
SLOT_HEADINGS = {
    "threshold": "expected time of the selected client",
    "objective": "objective of the selected client",
    "behind": "turns behind, this decision included",
    "longer": "the turn would take longer by",
}


def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of a fleet, or store of runs.")],
    client: Annotated[
        str, typer.Argument(metavar="CLIENT", help="Id of the client; in a store of runs its row, from 0.")
    ],
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="Round, or turn without rounds; by default the newest.")
    ] = None,
    run: Annotated[
        int | None, typer.Option(min=1, help="Number of the run in a store; by default the only one.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Explain why a client was selected in a round and by what margin, or what it lacked.

    For fair-pace this is the price of its turn in seconds, for rbcsf the turns that it is owed.

    Example: turnout fleet explain fleet.turnout phone-17 --round 120
    """
    found = _explain_fleet(file, client, round_, run) if is_fleet(file) else _explain_run(file, client, round_, run)
    if json:
        print_json(asdict(found))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(printable(found.sentence))
    table = Table(show_header=False)
    for name, (heading, unit) in (PRICE_ROWS if found.unit == "seconds" else ROWS).items():
        value = getattr(found, name)
        if found.time_unit is not TimeUnit.ROUND:
            heading = SLOT_HEADINGS.get(name, heading.replace("rounds until", f"{found.time_unit.plural} until"))
        if value is not None:
            table.add_row(heading, f"{value:,.4g} {unit}".rstrip() if isinstance(value, float) else f"{value:,}")
    if found.instead:
        heading = "would be selected instead" if found.outcome == "chosen" else "would not be selected"
        table.add_row(heading, printable(", ".join(found.instead)))
    if table.row_count:
        Console().print(table)


def _explain_fleet(file: Path, client: str, round_: int | None, run: int | None) -> Explanation:
    if run is not None:
        raise SettingError(f"{file} is a live fleet, which has no runs: omit --run")
    with FleetReader(file) as reader:
        return reader.explain(client, round_)


def _explain_run(file: Path, client: str, round_: int | None, run: int | None) -> Explanation:
    with RunStore(file, read_only=True) as store:
        numbers = [info.id for info in store.runs()]
        if run is None and len(numbers) != 1:
            raise SettingError(f"{file} holds {len(numbers)} runs: select one", argument="run")
        row = client.removeprefix("client ").removeprefix("c")
        if not row.isdecimal():
            raise SettingError(f"clients of a run are identified by their rows, such as 17, not {client!r}")
        return explain_run(store, numbers[0] if run is None else run, int(row), round_)
