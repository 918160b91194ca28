"""`turnout traces`: files of recorded availability, devices and network links."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import JsonOption, print_json
from turnout.errors import DatasetError, SettingError
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.files import check_traces, read_traces, write_traces
from turnout.lab.worlds.traces.formats.tables import Layout
from turnout.lab.worlds.traces.summary import summarise_traces

traces = typer.Typer(
    no_args_is_help=True,
    help="Describe, convert and check traces of real devices: availability, speed and bandwidth (docs/traces.md).\n\n"
    "To simulate them: turnout simulate --world name=traces --world traces=FILE\n\n"
    "Example: turnout traces describe traces.csv",
)


class PartName(StrEnum):
    """The parts of a trace."""

    availability = "availability"
    devices = "devices"
    links = "links"


FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Trace files: .csv, .jsonl, .npz, or .json of FedScale; also .gz."),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="Name of a standard column in the file, such as score=CPU_F_AI_Score. Repeatable.",
    ),
]
OnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="STATE", help="State that means available, such as 2; all other states do not. Repeatable."
    ),
]
DropOption = Annotated[float, typer.Option(metavar="SECONDS", help="Ignore availability before this time.")]
EndOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="End of all records; later data is ignored."),
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
    """Summarise trace files: clients, availability by hour of the day, speed and bandwidth (Mbps).

    Example: turnout traces describe availability.csv devices.csv
    """
    description = summarise_traces(read_traces(*files, layout=_layout(column, on, drop_before, end)))
    if json:
        print_json(description)
    else:
        _print(description)


@traces.command()
def convert(
    files: FilesArgument,
    to: Annotated[Path, typer.Option(help="File to write: .csv, .jsonl (both also .gz) or .npz.")],
    part: Annotated[PartName | None, typer.Option(help="Write only this part.")] = None,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """Combine trace files into one file; the suffix of its name selects the format.

    The write is atomic. A CSV file holds one part.

    Example: turnout traces convert availability.csv devices.csv --to fleet.npz
    """
    read = read_traces(*files, layout=_layout(column, on, drop_before, end))
    if part is not None:
        if part.value not in read.parts:
            raise SettingError(f"these files hold no {part.value}, only {', '.join(read.parts)}")
        read = Traces(**{part.value: read.parts[part.value]})  # type: ignore[arg-type]  # each part has its own type
    write_traces(read, to)
    counts = {name: len(trace.ids) for name, trace in read.parts.items()}
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
    """List all problems of trace files with their lines.

    Exit code: 0 if there are no problems, 1 if there are.

    Example: turnout traces check availability.csv
    """
    layout = _layout(column, on, drop_before, end)
    valid = True
    rows = []
    for file in files:
        try:
            read, problems = check_traces(file, layout=layout)
            problem_rows = [{"place": problem.location, "what": problem.description} for problem in problems]
            lines = [str(problem) for problem in problems]
        except DatasetError as error:
            read, problem_rows, lines = Traces(), [{"place": "", "what": str(error)}], [str(error)]
        counts = {name: len(trace.ids) for name, trace in read.parts.items()}
        valid = valid and not lines
        rows.append({"file": str(file), "sound": not lines, **counts, "problems": problem_rows})
        if not json:
            content = ", ".join(f"{name} of {count:,}" for name, count in counts.items())
            typer.echo("\n".join(lines) if lines else f"{file}: valid, {content}")
    if json:
        print_json(rows)
    if not valid:
        raise typer.Exit(1)


def _layout(column: list[str] | None, on: list[str] | None, drop_before: float, end: float | None) -> Layout:
    columns = {}
    for text in column or []:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours or not theirs:
            raise SettingError(f"write --column as OURS=THEIRS, such as score=CPU_F_AI_Score, not {text!r}")
        columns[ours.strip()] = theirs.strip()
    return Layout(columns, tuple(on or ()), drop_before, end)


def _print(description: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    table = Table()
    for heading in ("", "min", "5 %", "25 %", "median", "75 %", "95 %", "max"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    if "availability" in description:
        part = description["availability"]
        days = f"{part['days']['shortest']:g}"
        days += f" to {part['days']['longest']:g}" if part["days"]["longest"] > part["days"]["shortest"] else ""
        console.print(
            f"availability: {part['clients']:,} clients, {days} days, {part['intervals']:,} intervals, "
            f"{part['sessions_a_day']:.1f} per day and client; available {part['mean']:.1%} of the time; "
            f"{part['never']:,} never, {part['always']:,} always"
        )
        console.print(f"  by hour of the day  {_bars(part['by_hour'])}")
        _add(table, "share of time", part["shares"])
        _add(table, "session, s", part["session_seconds"])
    if "devices" in description:
        part = description["devices"]
        console.print(f"devices: {part['devices']:,}, mean {part['unit']} {part['mean']:.4g}")
        _add(table, "s per sample" if part["unit"] == "seconds_per_sample" else "score", part["values"])
    if "links" in description:
        part = description["links"]
        console.print(
            f"links: {part['links']:,}: {part['constant']:,} constant, {part['mean_and_deviation']:,} mean and "
            f"deviation, {part['series']:,} series"
            + (
                f" of {part['hours_of_series']:.1f} h in total, {part['share_of_time_at_zero']:.2%} of the time at zero"
                if part["series"]
                else ""
            )
        )
        for direction in ("down", "up"):
            _add(table, f"{direction}, Mbps", part[f"{direction}_mbps"])
        _add(table, "relative deviation", part["relative_deviation"])
    console.print(table)
    joined = description["joined"]
    console.print("A world of these files: " + ", ".join(f"{name} {origin}" for name, origin in joined.items()) + ".")
    if "drawn" in joined.values() or "generated" in joined.values():
        console.print(f"Note: {description['assumption']}.")
    console.print(f"fingerprint {description['fingerprint']}")


def _add(table: Table, name: str, quantiles: dict[str, float | None]) -> None:
    table.add_row(name, *("–" if value is None else _short(value) for value in quantiles.values()))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bars(shares: list[float | None]) -> str:
    """Returns one bar per hour, scaled to the maximum, and the range in numbers."""
    known = [share for share in shares if share is not None]
    most = max(known) or 1.0
    bars = "".join(" " if share is None else _BARS[round(share / most * (len(_BARS) - 1))] for share in shares)
    return f"{bars}  {min(known):.1%} to {max(known):.1%}"
