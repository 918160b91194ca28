"""`turnout data`: the datasets of real training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.options import JsonOption, SeedOption, print_json, progress_bar
from turnout.errors import DatasetError
from turnout.experiments.framework.drawing import save_as
from turnout.experiments.partition_figure import draw_partition
from turnout.lab.datasets import SOURCES, Source, find_source, load_dataset
from turnout.lab.files import fetch as fetch_files
from turnout.lab.files import find_folder
from turnout.lab.partition import partition

data = typer.Typer(no_args_is_help=True, help="List, fetch and check the datasets, and see who holds what.")

NameArgument = Annotated[str, typer.Argument(help=f"{', '.join(SOURCES)}.")]
FolderOption = Annotated[
    Path | None, typer.Option(help="The folder of its files; by default the known ones are searched.")
]


@data.command("list")
def list_datasets(json: JsonOption = False) -> None:
    """What there is, and where it was found."""
    rows = [
        {"name": source.name, "title": source.title, "licence": source.licence, "folder": _where(source)}
        for source in SOURCES.values()
    ]
    if json:
        print_json(rows)
        return
    table = Table()
    for heading in ("name", "what", "licence", "where"):
        table.add_column(heading)
    for row in rows:
        table.add_row(row["name"], row["title"], row["licence"], row["folder"] or "not here: turnout data fetch")
    Console().print(table)


@data.command()
def path(name: NameArgument, json: JsonOption = False) -> None:
    """The folder a dataset is read from."""
    source = find_source(name)
    folder = "with the package" if source.files is None else str(find_folder(source.files))
    if json:
        print_json({"name": name, "folder": folder})
    else:
        typer.echo(folder)


@data.command()
def check(name: NameArgument, folder: FolderOption = None, json: JsonOption = False) -> None:
    """Read a dataset whole and compare every checksum."""
    loaded = load_dataset(name, folder)
    told = {
        "name": name,
        "train": list(loaded.train_images.shape),
        "test": list(loaded.test_images.shape),
        "classes": list(loaded.classes),
    }
    if json:
        print_json(told)
    else:
        typer.echo(
            f"{name} is whole: {len(loaded.train_labels):,} training and {len(loaded.test_labels):,} test images"
        )


@data.command()
def fetch(
    name: NameArgument,
    folder: Annotated[Path | None, typer.Option(help="Where to put it; by default the user's cache.")] = None,
    address: Annotated[str | None, typer.Option(help="Another address than its official home.")] = None,
    json: JsonOption = False,
) -> None:
    """Download a dataset from its official home; every file is checked before it is kept."""
    source = find_source(name)
    if source.files is None:
        raise DatasetError(f"{name} comes with the package: there is nothing to fetch")
    with progress_bar() as progress:
        task = progress.add_task(f"Fetching {name}", total=None)
        kept = fetch_files(source.files, folder, address=address, watch=lambda count: progress.advance(task, count))
    if json:
        print_json({"name": name, "folder": str(kept)})
    else:
        typer.echo(f"{name} is whole, in {kept}")


@data.command()
def holdings(
    name: NameArgument,
    gamma: Annotated[float, typer.Option(help="gamma_1 of the paper: small is uneven, inf is iid.")] = 1.0,
    clients: Annotated[int, typer.Option(min=1)] = 40,
    items: Annotated[int, typer.Option(min=1, help="How many items each client holds.")] = 500,
    seed: SeedOption = 0,
    folder: FolderOption = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this file (.svg or .png).")] = None,
    json: JsonOption = False,
) -> None:
    """Who holds how many items of each class, after the paper's split."""
    loaded = load_dataset(name, folder)
    split = partition(loaded.train_labels, clients=clients, items=items, gamma=gamma, seed=seed)
    if figure is not None:
        title = f"{name}, {'iid' if math.isinf(gamma) else f'gamma = {gamma:g}'}"
        save_as(draw_partition(split.counts, loaded.classes, title), figure)
    if json:
        print_json({"classes": list(loaded.classes), "counts": split.counts.tolist()})
        return
    table = Table(title=f"items of each class, {clients} clients")
    for heading in ("client", *loaded.classes):
        table.add_column(heading, justify="right")
    for client, counts in enumerate(split.counts.tolist()):
        table.add_row(str(client), *map(str, counts))
    Console().print(table)


def _where(source: Source) -> Any:
    if source.files is None:
        return "with the package"
    try:
        return str(find_folder(source.files))
    except DatasetError:
        return None
