"""The command `turnout`: its sub-commands and its error messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from turnout.cli.advice import Interrupted, describe
from turnout.errors import TurnoutError
from turnout.kernel.backend import kernel_name, missing_kernel
from turnout.version import __version__


class CommandGroup(NamedTuple):
    """A group of commands: its help, and the function of each command as module:function."""

    help: str
    commands: Mapping[str, str | CommandGroup]


def _in(module: str, *functions: str) -> dict[str, str]:
    """Returns the commands that are functions of a module, under their own names."""
    return {function.strip("_").replace("_", "-"): f"{module}:{function}" for function in functions}


TOKENS = CommandGroup(
    "Create, list and revoke the tokens of a fleet's HTTP service.\n\n"
    "Example: turnout fleet tokens create fleet.turnout --role server",
    _in("fleet.serve", "create", "list_", "revoke"),
)
FLEET = CommandGroup(
    "Create, inspect and operate a live fleet, in a file or a database, and serve it.\n\n"
    "Example: turnout fleet status fleet.turnout",
    {
        **_in("fleet.operate", "create", "amend"),
        **_in("fleet.status", "status", "history", "export", "explain"),
        **_in("fleet.certify", "certify"),
        **_in("fleet.replay", "replay"),
        **_in("fleet.serve", "dashboard", "serve"),
        "tokens": TOKENS,
        **_in("fleet.operate", "doctor", "backup", "copy", "restore", "compact", "retire", "forget", "abandon_round"),
    },
)
RUNS = CommandGroup(
    "Show, export and delete the runs of a store.\n\nExample: turnout runs show results/runs.turnout",
    _in("lab.runs", "show", "export", "delete"),
)
STUDY = CommandGroup(
    "Repeat the studies of this project, and rank policies.\n\n"
    "Example: turnout study reproduce queues --seeds 5 --out results",
    _in("studies.reproduce", "leaderboard", "reproduce"),
)
DATA = CommandGroup(
    "List, download and verify datasets.\n\nExample: turnout data list", _in("lab.data", "list_", "fetch")
)
TRACES = CommandGroup(
    "Describe, check and convert traces of real devices: availability, speed and bandwidth (docs/traces.md).\n\n"
    "To simulate them: turnout simulate --world name=traces --world traces=FILE\n\n"
    "Example: turnout traces describe traces.csv",
    _in("lab.data", "describe", "convert"),
)
#: The part of the help for each command.
PANELS = {
    **dict.fromkeys(("demo", "check"), "See it work"),
    **dict.fromkeys(("fleet", "verify"), "Run a live fleet"),
    **dict.fromkeys(("simulate", "runs", "study"), "Simulate and compare"),
    **dict.fromkeys(("policies", "worlds", "new", "traces", "data"), "Policies, worlds and data"),
}
#: All commands, in the order of the help.
COMMANDS: Mapping[str, str | CommandGroup] = {
    **_in("studies.demo", "demo"),
    **_in("lab.check", "check"),
    "fleet": FLEET,
    **_in("fleet.certify", "verify"),
    **_in("lab.simulate", "simulate"),
    "runs": RUNS,
    "study": STUDY,
    **_in("plugins.catalogue", "policies", "worlds"),
    **_in("plugins.new", "new"),
    "traces": TRACES,
    "data": DATA,
}
STYLE: Mapping[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
}


def _hide_types(params: list[Any]) -> list[Any]:
    """Hides the types of flags, which newer versions of typer show as if flags took a value: `--json <bool>`."""
    for parameter in params:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda **_: None
    return params


class Command(TyperCommand):
    """A command whose help is the same with all versions of typer."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, with the option for help."""
        return _hide_types(super().get_params(ctx))


class LazyGroup(TyperGroup):
    """A group of commands. The module of a command is imported when it is looked up, so that each starts fast.

    Only the help, which shows a line about each command, imports all.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.use(COMMANDS)

    def use(self, commands: Mapping[str, str | CommandGroup]) -> None:
        """Sets the commands of the group; typer reads their names only."""
        self._places = commands
        self.commands = dict.fromkeys(commands)  # type: ignore[assignment]

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the parameters, with the option for help."""
        return _hide_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Imports a command and returns it as typer represents it; None if there is none."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command = _build(place, cmd_name)
        command.rich_help_panel = PANELS.get(cmd_name) if self._places is COMMANDS else None
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Shows the help, which is no error, if no command is named."""
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


@cache
def _load(function: str, name: str) -> Any:
    module, _, attribute = function.partition(":")
    parent = typer.Typer(**STYLE)
    parent.callback()(lambda: None)
    parent.command(name, cls=Command)(getattr(import_module(f"turnout.cli.{module}"), attribute))
    return typer.main.get_group(parent).commands[name]


def _build(place: str | CommandGroup, name: str) -> Any:
    if isinstance(place, str):
        return _load(place, name)
    parent = typer.Typer(name=name, cls=LazyGroup, help=place.help, **STYLE)
    parent.callback()(lambda: None)
    group = typer.main.get_group(parent)
    assert isinstance(group, LazyGroup)
    group.use(place.commands)
    return group


app = typer.Typer(
    name="turnout",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    **{**STYLE, "add_completion": True},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"turnout {__version__} ({kernel_name()} kernel)")
        if reason := missing_kernel():
            typer.echo(f"note: {reason}", err=True)
        raise typer.Exit


@app.callback()
def turnout(
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and the kernel."),
    ] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="MODULE:NAME",
            help="A policy, world or learner of your own that a file names, such as my.module:MyPolicy. Repeatable.",
        ),
    ] = None,
) -> None:
    """Select clients for federated learning: short rounds, and a guaranteed share of the rounds for every client.

    Example: turnout demo
    """
    if plugins:
        from turnout.cli.naming import load_plugin  # most commands need no plug-ins, and start faster without

        for name in plugins:
            load_plugin(name)


def main() -> None:
    """Runs the command. A `TurnoutError` is printed as one line on standard error, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file on Windows has an encoding without some of our characters
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="turnout")
    except TurnoutError as error:
        _fail(f"error: {describe(error)}", 2)
    except MemoryError as error:
        _fail(f"error: this needs more memory than there is ({error}): use fewer clients or rounds", 2)
    except Interrupted as stop:
        _fail(stop.describe(sys.argv[1:]), 130)


def _fail(message: str, code: int) -> NoReturn:
    from turnout.cli.options import say  # most commands do not fail, and --version and completion start faster without

    say(*message.splitlines(), err=True)
    sys.exit(code)
