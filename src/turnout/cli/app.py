"""The command `turnout`: its sub-commands and its error messages."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from turnout.cli.advice import describe
from turnout.cli.interruption import Interrupted
from turnout.errors import TurnoutError, suggestion
from turnout.kernel.backend import kernel_name
from turnout.version import __version__

#: The module of each command, in the order of the help. A command is a function with the name of the command, or a
#: group of commands.
MODULES: Mapping[str, str] = {
    "demo": "simulation.demo",
    "simulate": "simulation.simulate",
    "compare": "simulation.simulate",
    "reproduce": "studies.reproduce",
    "train": "studies.train",
    "check": "simulation.check",
    "tune": "studies.tune",
    "replay": "live.replay",
    "explain": "live.explain",
    "certify": "live.certify",
    "verify": "live.certify",
    "dashboard": "live.dashboard",
    "bench": "bench",
    "runs": "simulation.runs",
    "data": "studies.data",
    "traces": "simulation.traces",
    "fleet": "live.fleet",
}
STYLE: Mapping[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
}


class LazyGroup(TyperGroup):
    """The commands of turnout. The module of a command is imported when it is used, so that every command starts fast.

    The help of turnout itself imports all of them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Returns the names of the commands."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Returns a command, or None if there is no such command."""
        return load_command(cmd_name) if cmd_name in MODULES else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command that the arguments name; the error for an unknown command suggests similar ones."""
        try:
            return click.Group.resolve_command(self, ctx, args)
        except click.UsageError as error:
            error.message = error.message.rstrip(".") + suggestion(args[0], MODULES)
            raise


@cache
def load_command(name: str) -> click.Command:
    """Imports a command and returns it as an object of click."""
    found = getattr(import_module(f"turnout.cli.{MODULES[name]}"), name)
    parent = typer.Typer(**STYLE)
    parent.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    group = typer.main.get_group(parent)
    return group.commands[name]


app = typer.Typer(
    name="turnout",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **STYLE,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"turnout {__version__} ({kernel_name()} kernel)")
        raise typer.Exit


@app.callback()
def turnout(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and the kernel."),
    ] = False,
) -> None:
    """Select clients for federated learning: short rounds, and a guaranteed share of the rounds for every client.

    Example: turnout demo
    """


def main() -> None:
    """Runs the command. A `TurnoutError` is printed as one line on standard error, with exit code 2."""
    try:
        app(prog_name="turnout")
    except TurnoutError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print("error:", describe(error), markup=False)
        sys.exit(2)
    except MemoryError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"error: this needs more memory than there is ({error}): use fewer clients or rounds", markup=False
        )
        sys.exit(2)
    except Interrupted:
        command = shlex.join(["turnout", *sys.argv[1:]])
        Console(stderr=True, soft_wrap=True, highlight=False).print(
            f"interrupted: finished runs are saved. To continue: {command}", markup=False
        )
        sys.exit(130)
