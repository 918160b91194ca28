"""What several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Everything that is drawn is drawn from this.")]


def progress_bar() -> Progress:
    """A bar on standard error, where somebody looks at it."""
    console = Console(stderr=True)
    return Progress(transient=True, console=console, disable=not console.is_terminal)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2))
