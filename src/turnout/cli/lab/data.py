"""`turnout data` and `turnout traces`: the datasets for training, and files of recorded devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.advice import describe as explained
from turnout.cli.options import JsonOption, prepare_file, print_json, progress_bar, say
from turnout.cli.tables import print_table
from turnout.errors import DatasetError, SettingError
from turnout.lab.training.datasets import SOURCES, DatasetSource, find_folder, find_source, load_dataset
from turnout.lab.training.datasets import fetch as fetch_files
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.files import check_traces, read_traces, trace_format, write_traces
from turnout.lab.worlds.traces.formats.tables import TraceLayout
from turnout.lab.worlds.traces.population import summarise_traces

NameArgument = Annotated[str, typer.Argument(help=f"Dataset: {', '.join(SOURCES)}.")]


def list_() -> None:
    """List the datasets, their licences and their folders.

    Example: turnout data list
    """
    rows = ((source.name, source.title, source.licence, _place(source)) for source in SOURCES.values())
    print_table(("name", "title", "licence", "folder"), rows)


def fetch(
    name: NameArgument,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the files; by default the usual folders, or the user's cache.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Download from this URL instead of the official one.")] = None,
) -> None:
    """Verify the checksum of every file of a dataset, and download what is missing or damaged from its official URL.

    Example: turnout data fetch fashion-mnist
    """
    files = find_source(name).files
    try:
        loaded = load_dataset(name, folder)
    except DatasetError:
        if files is None:
            raise
        with progress_bar() as progress:
            task = progress.add_task(f"Downloading {name}", total=None)
            fetch_files(files, folder, address=address, watch=lambda count: progress.advance(task, count))
        loaded = load_dataset(name, folder)
    place = "with the package" if files is None else f"in {find_folder(files, folder)}"
    counts = f"{len(loaded.train_labels):,} training and {len(loaded.test_labels):,} test images"
    say(f"{name} is complete, {place}: {counts}")


def _place(source: DatasetSource) -> str:
    """Returns the folder of a dataset, or how to get it."""
    if source.files is None:
        return "with the package"
    try:
        return str(find_folder(source.files))
    except DatasetError:
        return f"missing: turnout data fetch {source.name}"


FilesArgument = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Trace files: .csv, .csv.gz or .npz.")]
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
EndOption = Annotated[float | None, typer.Option(metavar="SECONDS", help="End of all records; later data is ignored.")]

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


def _problems(file: Path, layout: TraceLayout) -> list[dict[str, str]]:
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
) -> None:
    """Combine trace files into one file; the suffix of its name selects the format.

    The write is atomic.

    Example: turnout traces convert availability.csv devices.csv --to fleet.npz
    """
    trace_format(to)
    read = read_traces(*files, layout=_layout(column, on, drop_before, end))
    if part is not None:
        if part not in read.parts:
            raise SettingError(f"these files hold no {part}, only {', '.join(read.parts)}")
        read = Traces(**{part: read.parts[part]})  # type: ignore[arg-type]  # each part has its own type
    prepare_file(to)
    write_traces(read, to)
    say(f"{to}: {', '.join(f'{name} of {len(trace.ids):,}' for name, trace in read.parts.items())}")


def _layout(column: list[str] | None, on: list[str] | None, drop_before: float, end: float | None) -> TraceLayout:
    columns = {}
    for text in column or []:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours or not theirs:
            raise SettingError(f"write --column as OURS=THEIRS, such as score=CPU_F_AI_Score, not {text!r}")
        columns[ours.strip()] = theirs.strip()
    return TraceLayout(columns, tuple(on or ()), drop_before, end)


def _print(description: dict[str, Any]) -> None:
    rows: dict[str, dict[str, float | None]] = {}
    if "availability" in description:
        part = description["availability"]
        shortest, longest = part["days"]["shortest"], part["days"]["longest"]
        days = f"{shortest:g} to {longest:g}" if longest > shortest else f"{shortest:g}"
        say(
            f"availability: {part['clients']:,} clients, {days} days, {part['intervals']:,} intervals, "
            f"{part['sessions_a_day']:.1f} per day and client; available {part['mean']:.1%} of the time; "
            f"{part['never']:,} never, {part['always']:,} always",
            f"  by hour of the day  {_bars(part['by_hour'])}",
        )
        rows |= {"share of time": part["shares"], "session, s": part["session_seconds"]}
    if "devices" in description:
        part = description["devices"]
        say(f"devices: {part['devices']:,}, mean {part['unit']} {part['mean']:.4g}")
        rows["s per sample" if part["unit"] == "seconds_per_sample" else "score"] = part["values"]
    if "links" in description:
        part = description["links"]
        zero = f" of {part['hours_of_series']:.1f} h in total, {part['share_of_time_at_zero']:.2%} of the time at zero"
        say(
            f"links: {part['links']:,}: {part['constant']:,} constant, {part['mean_and_deviation']:,} mean and "
            f"deviation, {part['series']:,} series{zero if part['series'] else ''}"
        )
        rows |= {f"{direction}, Mbps": part[f"{direction}_mbps"] for direction in ("down", "up")}
        rows["relative deviation"] = part["relative_deviation"]
    cells = ((name, *map(_short, quantiles.values())) for name, quantiles in rows.items())
    print_table(("", "min>", "5 %>", "25 %>", "median>", "75 %>", "95 %>", "max>"), cells)
    joined = description["joined"]
    say("A world of these files: " + ", ".join(f"{name} {origin}" for name, origin in joined.items()) + ".")
    if "drawn" in joined.values() or "generated" in joined.values():
        say(f"Note: {description['assumption']}.")
    say(f"fingerprint {description['fingerprint']}")


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _bars(shares: list[float | None]) -> str:
    """Returns one bar per hour, scaled to the maximum, and the range in numbers."""
    known = [share for share in shares if share is not None]
    most = max(known) or 1.0
    bars = "".join(" " if share is None else _BARS[round(share / most * (len(_BARS) - 1))] for share in shares)
    return f"{bars}  {min(known):.1%} to {max(known):.1%}"
