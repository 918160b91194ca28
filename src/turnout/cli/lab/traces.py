"""`turnout traces`: files of recorded availability, devices and network links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.advice import describe as explained
from turnout.cli.options import JsonOption, print_json
from turnout.errors import DatasetError, SettingError
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.files import check_traces, read_traces, write_traces
from turnout.lab.worlds.traces.formats.tables import Layout
from turnout.lab.worlds.traces.summary import summarise_traces

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Trace files: .csv, .npz, or .json of FedScale; also .gz."),
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


def describe(
    files: FilesArgument,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """Check trace files, and summarise them: clients, availability by hour of the day, speed and bandwidth (Mbps).

    If there are problems, all of them are listed, with their lines, instead of the summary.

    Exit code: 0 if there are no problems, 1 if there are.

    Example: turnout traces describe availability.csv devices.csv
    """
    layout = _layout(column, on, drop_before, end)
    problems = [problem for file in files for problem in _problems(file, layout)]
    if problems:
        if json:
            print_json({"problems": problems})
        else:
            typer.echo("\n".join(problem["text"] for problem in problems))
        raise typer.Exit(1)
    description = summarise_traces(read_traces(*files, layout=layout))
    if json:
        print_json({"problems": [], **description})
    else:
        _print(description)


def _problems(file: Path, layout: Layout) -> list[dict[str, str]]:
    """Returns all problems of a file, with their places."""
    try:
        _, problems = check_traces(file, layout=layout)
    except DatasetError as error:
        return [{"file": str(file), "place": "", "what": str(error), "text": explained(error)}]
    return [
        {"file": str(file), "place": problem.location, "what": problem.description, "text": str(problem)}
        for problem in problems
    ]


def convert(
    files: FilesArgument,
    to: Annotated[Path, typer.Option(help="File to write: .csv (also .gz) or .npz.")],
    part: Annotated[
        str | None, typer.Option(help="Write only this part: availability, devices or links; a CSV file holds one.")
    ] = None,
    column: ColumnOption = None,
    on: OnOption = None,
    drop_before: DropOption = 0.0,
    end: EndOption = None,
    json: JsonOption = False,
) -> None:
    """Combine trace files into one file; the suffix of its name selects the format.

    The write is atomic.

    Example: turnout traces convert availability.csv devices.csv --to fleet.npz
    """
    read = read_traces(*files, layout=_layout(column, on, drop_before, end))
    if part is not None:
        if part not in read.parts:
            raise SettingError(f"these files hold no {part}, only {', '.join(read.parts)}")
        read = Traces(**{part: read.parts[part]})  # type: ignore[arg-type]  # each part has its own type
    write_traces(read, to)
    counts = {name: len(trace.ids) for name, trace in read.parts.items()}
    if json:
        print_json({"file": str(to), "fingerprint": read.fingerprint, **counts})
    else:
        typer.echo(f"{to}: {', '.join(f'{name} of {count:,}' for name, count in counts.items())}")


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
