"""The command line of the benchmarks: `python -m benchmarks` in the root of a checkout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from benchmarks.check_ins import check_ins
from benchmarks.choose import choose, imports
from benchmarks.dashboard import dashboard
from benchmarks.flower import flower
from benchmarks.flower_accuracy import flower_accuracy
from benchmarks.harness import Result, print_result
from benchmarks.live import live, year
from benchmarks.postgres import postgres
from benchmarks.service import service
from benchmarks.slots import slots
from benchmarks.sweep import sweep
from benchmarks.takeover import takeover
from benchmarks.training import own_models, training
from turnout.errors import TurnoutError

#: All benchmarks, in the order of the help; the first line of a function says what it measures.
BENCHMARKS: tuple[Callable[..., Result], ...] = (
    choose,
    imports,
    live,
    year,
    postgres,
    takeover,
    slots,
    service,
    check_ins,
    dashboard,
    flower,
    flower_accuracy,
    sweep,
    training,
    own_models,
)


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    result_callback=print_result,
)
for benchmark in BENCHMARKS:
    app.command(benchmark.__name__.replace("_", "-"))(benchmark)


@app.callback()
def benchmarks(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False) -> None:
    """Measure how fast turnout is, and compare it with reference implementations.

    Each benchmark measures its tasks alternately in one run and reports ratios, which hold on any machine; the
    milliseconds hold for this machine only.

    Example: python -m benchmarks live --clients 100000
    """


def main() -> None:
    """Runs a benchmark. A `TurnoutError` is printed as one line on standard error, with exit code 2."""
    try:
        app(prog_name="python -m benchmarks")
    except TurnoutError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
