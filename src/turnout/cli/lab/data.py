"""`turnout data`: the datasets for training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.completion import complete_datasets
from turnout.cli.options import FigureOption, JsonOption, SeedOption, print_json, print_table, progress_bar, say
from turnout.counting import pluralize
from turnout.errors import DatasetError
from turnout.lab.drawing.partition import draw_partition
from turnout.lab.drawing.style import save_as
from turnout.lab.training.datasets import SOURCES, Source, find_source, load_dataset
from turnout.lab.training.files import fetch as fetch_files
from turnout.lab.training.files import find_folder
from turnout.lab.training.partition import partition as partition_labels

NameArgument = Annotated[str, typer.Argument(help=f"Dataset: {', '.join(SOURCES)}.", autocompletion=complete_datasets)]


def list_(json: JsonOption = False) -> None:
    """List the datasets, their licences and their folders.

    Example: turnout data list
    """
    rows: list[dict[str, Any]] = [
        {"name": source.name, "title": source.title, "licence": source.licence, "folder": _place(source)}
        for source in SOURCES.values()
    ]
    if json:
        print_json(rows)
        return
    cells = ({**row, "folder": row["folder"] or f"missing: turnout data fetch {row['name']}"} for row in rows)
    print_table(tuple(rows[0]), (row.values() for row in cells))


def fetch(
    name: NameArgument,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the files; by default the usual folders, or the user's cache.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Download from this URL instead of the official one.")] = None,
    json: JsonOption = False,
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
    place = "with the package" if files is None else str(find_folder(files, folder))
    if json:
        shapes = {"train": list(loaded.train_images.shape), "test": list(loaded.test_images.shape)}
        print_json({"name": name, "folder": place, **shapes, "classes": list(loaded.classes)})
    else:
        counts = f"{len(loaded.train_labels):,} training and {len(loaded.test_labels):,} test images"
        say(f"{name} is complete, {place if files is None else f'in {place}'}: {counts}")


def partition(
    name: NameArgument,
    gamma: Annotated[
        float, typer.Option(help="Concentration of the split (gamma_1 in the paper): small is uneven, inf is iid.")
    ] = 1.0,
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 40,
    items: Annotated[int, typer.Option(min=1, help="Number of items per client.")] = 500,
    seed: SeedOption = 0,
    figure: FigureOption = None,
    json: JsonOption = False,
) -> None:
    """Show the number of items of each class per client, after the paper's Dirichlet split.

    Example: turnout data partition digits --gamma 0.5 --figure split.svg
    """
    loaded = load_dataset(name)
    split = partition_labels(loaded.train_labels, clients=clients, items=items, gamma=gamma, seed=seed)
    if figure is not None:
        title = f"{name}, {'iid' if math.isinf(gamma) else f'gamma = {gamma:g}'}"
        save_as(draw_partition(split.counts, loaded.classes, title), figure)
    if json:
        print_json({"classes": list(loaded.classes), "counts": split.counts.tolist()})
        return
    headings = [f"{heading}>" for heading in ("client", *loaded.classes)]
    rows = (map(str, (client, *counts)) for client, counts in enumerate(split.counts.tolist()))
    print_table(headings, rows, title=f"items per class, {pluralize(clients, 'client')}")


def _place(source: Source) -> str | None:
    """Returns the folder of a dataset; None if it is missing."""
    if source.files is None:
        return "with the package"
    try:
        return str(find_folder(source.files))
    except DatasetError:
        return None
