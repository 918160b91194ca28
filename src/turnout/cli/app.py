"""The command `turnout`: its sub-commands and its error messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from turnout.cli.advice import describe
from turnout.cli.interruption import Interrupted
from turnout.errors import TurnoutError
from turnout.kernel.backend import kernel_name, missing_kernel
from turnout.version import __version__


class Group(NamedTuple):
    """A group of commands: its help, and the function of each command as module:function."""

    help: str
    commands: Mapping[str, str | Group]


FLEET = Group(
    "Create, inspect and operate the file of a live fleet, and serve it.\n\n"
    "Example: turnout fleet status fleet.turnout",
    {
        "create": "fleet.settings:create",
        "amend": "fleet.settings:amend",
        "status": "fleet.status:status",
        "history": "fleet.status:history",
        "explain": "fleet.explain:explain",
        "certify": "fleet.certify:certify",
        "dashboard": "fleet.dashboard:dashboard",
        "serve": "fleet.serve:serve",
        "tokens": Group(
            "Create, list and revoke the tokens of a fleet's HTTP service.\n\n"
            "Example: turnout fleet tokens create fleet.turnout --role server",
            {
                "create": "fleet.tokens:create",
                "list": "fleet.tokens:list_",
                "revoke": "fleet.tokens:revoke",
            },
        ),
        "replay": "fleet.replay:replay",
        "export": "fleet.status:export",
        "doctor": "fleet.operate:doctor",
        "backup": "fleet.operate:backup",
        "compact": "fleet.operate:compact",
        "retire": "fleet.operate:retire",
        "forget": "fleet.operate:forget",
        "abandon-round": "fleet.operate:abandon_round",
    },
)
RUNS = Group(
    "Show, compare, export and delete the runs of a store.\n\nExample: turnout runs show results/runs.turnout",
    {
        "show": "lab.runs:show",
        "compare": "lab.runs:compare",
        "export": "lab.runs:export",
        "delete": "lab.runs:delete",
    },
)
STUDY = Group(
    "Repeat the studies of this project, rank policies, train models and tune settings.\n\n"
    "Example: turnout study reproduce queues --seeds 5 --out results",
    {
        "leaderboard": "studies.leaderboard:leaderboard",
        "reproduce": "studies.reproduce:reproduce",
        "train": "studies.train:train",
        "tune": "studies.tune:tune",
    },
)
DATA = Group(
    "List, download and verify datasets, and split them over clients.\n\nExample: turnout data list",
    {"list": "lab.data:list_datasets", "fetch": "lab.data:fetch", "partition": "lab.data:partition"},
)
TRACES = Group(
    "Describe, check and convert traces of real devices: availability, speed and bandwidth (docs/traces.md).\n\n"
    "To simulate them: turnout simulate --world name=traces --world traces=FILE\n\n"
    "Example: turnout traces describe traces.csv",
    {"describe": "lab.traces:describe", "convert": "lab.traces:convert"},
)
#: All commands, in the order of the help.
COMMANDS: Mapping[str, str | Group] = {
    "demo": "studies.demo:demo",
    "fleet": FLEET,
    "verify": "fleet.certify:verify",
    "check": "lab.check:check",
    "simulate": "lab.simulate:simulate",
    "runs": RUNS,
    "study": STUDY,
    "policies": "plugins.catalogue:policies",
    "worlds": "plugins.catalogue:worlds",
    "new": "plugins.new:new",
    "traces": TRACES,
    "data": DATA,
}
STYLE: Mapping[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
}


class LazyCommands(Mapping[str, Any]):
    """Commands by name. The module of a command is imported when it is looked up, so that each starts fast."""

    def __init__(self, commands: Mapping[str, str | Group]) -> None:
        self._commands = commands

    def __getitem__(self, name: str) -> Any:
        """Imports a command and returns it as typer represents it."""
        command = self._commands[name]
        return _load(command, name) if isinstance(command, str) else _build_group(command, name)

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names."""
        return iter(self._commands)

    def __len__(self) -> int:
        """Returns the number of commands."""
        return len(self._commands)


class LazyGroup(TyperGroup):
    """A group of commands. Only its help, which shows a line about each of them, imports all."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(COMMANDS)  # type: ignore[assignment]  # nothing is ever added to it

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Returns the names of the commands."""
        return list(self.commands)


@cache
def _load(function: str, name: str) -> Any:
    module, _, attribute = function.partition(":")
    parent = typer.Typer(**STYLE)
    parent.callback()(lambda: None)
    parent.command(name)(getattr(import_module(f"turnout.cli.{module}"), attribute))
    return typer.main.get_group(parent).commands[name]


def _build_group(group: Group, name: str) -> TyperGroup:
    parent = typer.Typer(name=name, cls=LazyGroup, help=group.help, **STYLE)
    parent.callback()(lambda: None)
    built = typer.main.get_group(parent)
    built.commands = LazyCommands(group.commands)  # type: ignore[assignment]
    return built


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
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    sys.exit(code)
