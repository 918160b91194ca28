"""`turnout traces`: recorded availability, devices and links."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import JsonOption, print_json
from turnout.errors import DatasetError, SettingError
from turnout.simulator.traces.data import Traces
from turnout.simulator.traces.formats.files import check_traces, read_traces, write_traces
from turnout.simulator.traces.formats.tables import Layout
from turnout.simulator.traces.summary import summarise_traces

traces = typer.Typer(
    no_args_is_help=True,
    help="Describe, convert and check traces of real devices: when they are available, how fast they compute and are "
    "connected. Formats are in docs/traces.md. To play them: turnout simulate --world name=traces --world traces=FILE.",
)


class PartName(StrEnum):
    """The parts of a trace."""

    availability = "availability"
    devices = "devices"
    links = "links"


FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Files in .csv, .jsonl or .npz, or FedScale's records in .json; also .gz."),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="OURS=THEIRS", help="A column has another name, such as score=CPU_F_AI_Score. Repeatable."
    ),
]
OnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="STATE", help="A state that means available, such as 2; all others do not. Repeatable."
    ),
]
DropOption = Annotated[float, typer.Option(metavar="SECONDS", help="Leave out availability before this second.")]
EndOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Records end here, whatever the file says; what is later is left out."),
]

_BARS = "▁▂▃▄▅▆▇█"


@traces.command()
def describe(
    files: FilesArgument,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """Counts, coverage, mean availability and its daily rhythm, speed and bandwidth; and how parts would be joined."""
    told = summarise_traces(read_traces(*files, layout=_layout(column, on, drop_before, end)))
    if json:
        print_json(told)
    else:
        _print(told)


@traces.command()
def convert(
    files: FilesArgument,
    to: Annotated[Path, typer.Option(help="The file to write: .csv, .jsonl (each also .gz) or .npz.")],
    part: Annotated[PartName | None, typer.Option(help="Write only this part.")] = None,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """Read files, check them, and write all they hold into one, in the format of its name.

    The file is written whole or not at all. A CSV file takes one part.
    """
    read = read_traces(*files, layout=_layout(column, on, drop_before, end))
    if part is not None:
        if part.value not in read.parts:
            raise SettingError(f"there is no {part.value} in these files, only {', '.join(read.parts)}")
        read = Traces(**{part.value: read.parts[part.value]})  # type: ignore[arg-type]  # by name, each has its type
    write_traces(read, to)
    counts = {name: len(one.ids) for name, one in read.parts.items()}
    if json:
        print_json({"file": str(to), "fingerprint": read.fingerprint, **counts})
    else:
        typer.echo(f"{to}: {', '.join(f'{name} of {count:,}' for name, count in counts.items())}")


@traces.command()
def check(
    files: FilesArgument,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """List all that is wrong with each file, with its line. Exit code 0 if nothing is, 1 if something is."""
    layout = _layout(column, on, drop_before, end)
    sound = True
    rows = []
    for file in files:
        try:
            read, problems = check_traces(file, layout=layout)
            told = [{"place": one.location, "what": one.description} for one in problems]
            lines = [str(one) for one in problems]
        except DatasetError as unreadable:
            read, told, lines = Traces(), [{"place": "", "what": str(unreadable)}], [str(unreadable)]
        counts = {name: len(one.ids) for name, one in read.parts.items()}
        sound = sound and not lines
        rows.append({"file": str(file), "sound": not lines, **counts, "problems": told})
        if not json:
            holds = ", ".join(f"{name} of {count:,}" for name, count in counts.items())
            typer.echo("\n".join(lines) if lines else f"{file}: sound, {holds}")
    if json:
        print_json(rows)
    if not sound:
        raise typer.Exit(1)


def _layout(column: list[str] | None, on: list[str] | None, drop_before: float, end: float | None) -> Layout:
    columns = {}
    for text in column or []:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours or not theirs:
            raise SettingError(f"--column is written ours=theirs, such as score=CPU_F_AI_Score, not {text!r}")
        columns[ours.strip()] = theirs.strip()
    return Layout(columns, tuple(on or ()), drop_before, end)


def _print(told: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table()
    for heading in ("", "least", "5 %", "25 %", "median", "75 %", "95 %", "most"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    if "availability" in told:
        one = told["availability"]
        days = f"{one['days']['shortest']:g}"
        days += f" to {one['days']['longest']:g}" if one["days"]["longest"] > one["days"]["shortest"] else ""
        console.print(
            f"availability: {one['clients']:,} clients, {days} days, {one['intervals']:,} intervals, "
            f"{one['sessions_a_day']:.1f} a day and client; available {one['mean']:.1%} of the time; never "
            f"{one['never']:,}, always {one['always']:,}"
        )
        console.print(f"  by hour of the day  {_bars(one['by_hour'])}")
        _add(table, "share of time", one["shares"])
        _add(table, "session, s", one["session_seconds"])
    if "devices" in told:
        one = told["devices"]
        console.print(f"devices: {one['devices']:,}, {one['unit']} on average {one['mean']:.4g}")
        _add(table, "s a sample" if one["unit"] == "seconds_per_sample" else "score", one["values"])
    if "links" in told:
        one = told["links"]
        console.print(
            f"links: {one['links']:,}: {one['constant']:,} constant, {one['mean_and_deviation']:,} mean and deviation, "
            f"{one['series']:,} series"
            + (
                f" of {one['hours_of_series']:.1f} h together, {one['share_of_time_at_zero']:.2%} of it at zero"
                if one["series"]
                else ""
            )
        )
        for way in ("down_mbps", "up_mbps"):
            _add(table, f"{way.split('_', maxsplit=1)[0]}, Mbps", one[way])
        _add(table, "deviation", one["relative_deviation"])
    console.print(table)
    joined = told["joined"]
    console.print(
        "A world of these: " + ", ".join(f"{name} {way}" for name, way in joined.items()) + ".",
    )
    if "drawn" in joined.values() or "generated" in joined.values():
        console.print(f"Note: {told['assumption']}.")
    console.print(f"fingerprint {told['fingerprint']}")


def _add(table: Table, name: str, quantiles: dict[str, float | None]) -> None:
    table.add_row(name, *("–" if value is None else _short(value) for value in quantiles.values()))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bars(shares: list[float | None]) -> str:
    """One bar an hour, the highest for the busiest; and both ends in numbers."""
    known = [share for share in shares if share is not None]
    most = max(known) or 1.0
    bars = "".join(" " if share is None else _BARS[round(share / most * (len(_BARS) - 1))] for share in shares)
    return f"{bars}  {min(known):.1%} to {max(known):.1%}"
