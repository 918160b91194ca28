"""`turnout data`: the datasets for training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.options import progress_bar, say
from turnout.cli.tables import print_table
from turnout.errors import DatasetError
from turnout.lab.training.datasets import SOURCES, DatasetSource, find_source, load_dataset
from turnout.lab.training.files import fetch as fetch_files
from turnout.lab.training.files import find_folder

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
