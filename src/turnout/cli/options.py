"""Options and helpers that several commands share."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from turnout.errors import SettingError
from turnout.log import printable as escaped
from turnout.storage.address import as_location

if TYPE_CHECKING:
    from turnout.storage.store import Location as Location
else:
    Location = object  # typer knows no unions; `parse_location` says what it is


def parse_location(text: str) -> Location:
    """Returns the file or the address that an argument names."""
    try:
        return as_location(text)
    except SettingError as error:
        raise typer.BadParameter(str(error)) from error


FleetArgument = Annotated[
    Location,
    typer.Argument(
        metavar="FLEET",
        parser=parse_location,
        help="File of the fleet, such as fleet.turnout, or its address in a database: "
        "postgresql://host/database?fleet=name.",
    ),
]
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT", help="Id of the client.")]
RunOption = Annotated[int | None, typer.Option(min=1, help="Number of the run in a store; by default the only one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
OutOption = Annotated[Path | None, typer.Option(help="File to write; by default standard output.")]
SeedsOption = Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Number of worker processes; by default one per CPU core.")
]
DeviceOption = Annotated[str, typer.Option(help="Device that trains the models: cpu, or cuda for a GPU.")]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of all policies that have it, such as tolerance=1. Repeatable."
    ),
]
#: The option for a store, in every command that writes runs.
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Store for the runs; runs that it holds are not repeated, interrupted ones continue."),
]


def progress_bar() -> Progress:
    """Returns a progress bar on standard error, which is disabled unless standard error is a terminal."""
    console = Console(stderr=True)
    return Progress(transient=True, console=console, disable=not console.is_terminal)


@contextmanager
def showing_progress(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a callback that shows how much is done, of how much."""
    with progress_bar() as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def say(*lines: str, err: bool = False) -> None:
    """Prints lines on standard output or standard error; what clients and files have written is escaped."""
    console = Console(stderr=err, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(printable(line))


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def confirm(yes: bool, question: str) -> None:
    """Asks before something is lost; raises SettingError unless the user agrees, or has agreed with --yes."""
    if not yes and not (sys.stdin.isatty() and typer.confirm(printable(question).plain)):
        raise SettingError("nothing was changed: answer yes, or pass --yes")


def require_packages(purpose: str, extra: str, *packages: str) -> None:
    """Raises SettingError, which says what to install, if a package is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise SettingError(f"{purpose} needs {package}: pip install 'turnout[{extra}]'")


def make_folder_of(location: Location) -> None:
    """Creates the folder of a fleet that is to be written, unless it exists; an address has none."""
    if isinstance(location, Path):
        make_folder(location.parent)


def make_folder(path: Path) -> None:
    """Creates a folder, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"{path} is not a folder that can be written to: {error.strerror or error}") from error


def prepare_file(path: Path | None, *suffixes: str) -> None:
    """Checks, before the work begins, that a file can be written, and creates its folder.

    Args:
        path: The file; None if none is written.
        suffixes: What its name may end in; by default anything.
    """
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise SettingError(f"the name of the file must end in {' or '.join(suffixes)}, got {path.name!r}")
    if path.is_dir():
        raise SettingError(f"{path} is a folder: name a file in it")
    make_folder(path.parent)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        Path(name).unlink()
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error


def printable(text: str) -> Text:
    """Returns text from clients without markup, and with control characters escaped."""
    return Text(escaped(text))
