"""The command `turnout`: its sub-commands and its error messages."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from turnout.cli.advice import describe
from turnout.cli.interruption import Interrupted
from turnout.errors import TurnoutError
from turnout.kernel.backend import kernel_name, missing_kernel
from turnout.version import __version__

#: The module of each command, in the order of the help. A command is a function with the name of the command, or a
#: group of commands.
MODULES: Mapping[str, str] = {
    "demo": "lab.demo",
    "simulate": "lab.simulate",
    "compare": "lab.simulate",
    "sweep": "lab.sweep",
    "reproduce": "studies.reproduce",
    "train": "studies.train",
    "check": "lab.check",
    "tune": "studies.tune",
    "policies": "plugins.catalogue",
    "worlds": "plugins.catalogue",
    "new": "plugins.new",
    "replay": "fleet.replay",
    "explain": "fleet.explain",
    "certify": "fleet.certify",
    "verify": "fleet.certify",
    "dashboard": "fleet.dashboard",
    "runs": "lab.runs",
    "data": "studies.data",
    "traces": "lab.traces",
    "fleet": "fleet.fleet",
    "serve": "fleet.serve",
    "tokens": "fleet.tokens",
}
#: The commands that read files which may name a policy or world of another package.
LOADS_PLUGINS = ("replay", "explain", "certify", "verify", "dashboard", "runs", "fleet", "serve", "tune")
STYLE: Mapping[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
}


#: Former names of options, without their dashes, and the names that replaced them.
FORMER_OPTIONS: Mapping[str, str] = {"save": "store"}


class LazyCommands(Mapping[str, Any]):
    """The commands by name. The module of a command is imported when it is looked up, so that each starts fast."""

    def __getitem__(self, name: str) -> Any:
        """Imports a command and returns it as typer represents it."""
        return _build(name)

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names."""
        return iter(MODULES)

    def __len__(self) -> int:
        """Returns the number of commands."""
        return len(MODULES)


@cache
def _build(name: str) -> Any:
    found = getattr(import_module(f"turnout.cli.{MODULES[name]}"), name)
    parent = typer.Typer(**STYLE)
    parent.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    command = typer.main.get_group(parent).commands[name]
    if name in LOADS_PLUGINS:
        _add_plugin_option(command)
    return command


def _add_plugin_option(command: Any) -> None:
    """Adds --with to a command, or to the commands of a group."""
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            _add_plugin_option(each)
        return
    command.params.append(_plugin_option())


def _load_plugins(names: list[str] | None) -> None:
    if names:
        from turnout.cli.naming import load_plugin  # most commands need no plug-ins, and start faster without

        for name in names:
            load_plugin(name)


@cache
def _plugin_option() -> Any:
    """Returns --with. typer builds it from a signature: how an option is constructed differs between its versions."""
    template = typer.Typer(**STYLE)

    @template.command()
    def command(
        plugins: Annotated[
            list[str] | None,
            typer.Option(
                "--with",
                expose_value=False,
                is_eager=True,
                metavar="MODULE:NAME",
                callback=_load_plugins,
                help="A policy or world of your own that the file names, such as my.module:MyPolicy. Repeatable.",
            ),
        ] = None,
    ) -> None: ...

    return typer.main.get_command(template).params[0]


class LazyGroup(TyperGroup):
    """The group of all commands. Only its help, which shows a line about each of them, imports all."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands()  # type: ignore[assignment]  # nothing is ever added to it

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Returns the names of the commands."""
        return list(self.commands)


app = typer.Typer(
    name="turnout",
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        # The option for a store had another name; it stays valid, and no help shows it.
        "token_normalize_func": lambda name: FORMER_OPTIONS.get(name, name),
    },
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file on Windows has an encoding without some of our characters
            stream.reconfigure(errors="replace")
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
    except Interrupted as stop:
        Console(stderr=True, soft_wrap=True, highlight=False).print(stop.describe(sys.argv[1:]), markup=False)
        sys.exit(130)
