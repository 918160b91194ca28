"""The command `turnout`: its sub-commands and its error messages."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer
from rich.console import Console

from turnout import TurnoutError, __version__
from turnout.cli.advice import describe
from turnout.cli.bench import bench
from turnout.cli.live.certify import certify, verify
from turnout.cli.live.dashboard import dashboard
from turnout.cli.live.explain import explain
from turnout.cli.live.fleet import fleet
from turnout.cli.live.replay import replay
from turnout.cli.options import Interrupted
from turnout.cli.simulation.check import check
from turnout.cli.simulation.demo import demo
from turnout.cli.simulation.runs import runs
from turnout.cli.simulation.simulate import compare, simulate
from turnout.cli.simulation.traces import traces
from turnout.cli.studies.data import data
from turnout.cli.studies.reproduce import reproduce
from turnout.cli.studies.train import train
from turnout.cli.studies.tune import tune
from turnout.kernel.backend import kernel_name

app = typer.Typer(
    name="turnout",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (demo, simulate, compare, reproduce, train, check, tune, replay, explain, certify, verify, dashboard)
for command in COMMANDS:
    app.command()(command)
app.add_typer(bench, name="bench")
app.add_typer(runs, name="runs")
app.add_typer(data, name="data")
app.add_typer(traces, name="traces")
app.add_typer(fleet, name="fleet")


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
