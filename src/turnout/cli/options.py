"""Options and helpers that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from turnout.cli.completion import complete_settings
from turnout.errors import SettingError
from turnout.log import printable as escaped

FleetArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File of the fleet, such as fleet.turnout.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes; by default one per CPU core.")
]
DeviceOption = Annotated[str, typer.Option(help="Device that trains the models: cpu, or cuda for a GPU.")]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of all policies that have it, such as tolerance=1, or of one: rbcsf.speed_weight=5, "
        "with-guarantee.policy=oort. Repeatable.",
        autocompletion=complete_settings,
    ),
]
#: The option for a store, in every command that writes runs.
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Store for the runs; runs that it holds are not repeated, interrupted ones continue."),
]


def progress_bar() -> Progress:
    """Returns a progress bar on standard error, which is disabled unless standard error is a terminal."""
    console = Console(stderr=True)
    return Progress(transient=True, console=console, disable=not console.is_terminal)


def make_table(*headings: str, title: str | Text | None = None) -> Table:
    """Returns a table with these columns; that of a heading which ends in `>` is aligned to the right."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading.removesuffix(">"), justify="right" if heading.endswith(">") else "left")
    return table


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def make_folder(path: Path) -> None:
    """Creates a folder, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{path} is not a folder that can be written to: {error.strerror or error}") from error


def printable(text: str) -> Text:
    """Returns text from clients without markup, and with control characters escaped."""
    return Text(escaped(text))
