"""Measures rounds of training against a plain loop over the clients."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.harness import Device, Repeats, Result, Target, announce
from turnout.lab.training.datasets import Dataset, find_source
from turnout.lab.training.learner_cache import torch_device

TASKS = ("fashion-mnist", "cifar-10")
SHAPES = {"digits": (8, 8, 1), "fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}
ITEMS = 4000
MIN_SPEEDUP = {"cuda": 20.0, "cpu": 1.4}  # targets


def training(
    device: Device = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 10,
    datasets: Annotated[list[str], typer.Option("--dataset", help="Shape of the images. Repeatable.")] = list(TASKS),  # noqa: B006
    repeats: Repeats = 5,
) -> Result:
    """Measure a round of training (8 clients, 500 items each) against a plain loop over the clients.

    On a GPU, 16 runs that train at once are measured, too.

    Example: python -m benchmarks training --device cuda
    """
    kind = torch_device(device)  # raises an error with advice if torch or the device is missing
    from benchmarks.plain_training import compare_training

    rows: list[dict[str, Any]] = []
    for dataset in datasets:
        announce(dataset)
        # A new process for each dataset: the learner must fork before the plain loop has used torch.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            rows.append(pool.submit(compare_training, dataset, device, batch, repeats).result())
    targets = [
        Target(f"{row['dataset']}: plain loop / round", row["plain / round"], MIN_SPEEDUP[kind], is_minimum=True)
        for row in rows
    ]
    return Result(f"One round of 8 clients with 500 items each, batch size {batch}, {device}", rows, targets=targets)


def own_models(
    device: Device = "cpu",
    clients: Annotated[
        list[int] | None, typer.Option(help="Clients of a round; by default 8, on a GPU also 32 and 64. Repeatable.")
    ] = None,
    models: Annotated[list[str] | None, typer.Option("--model", help="Name of a model; by default all.")] = None,
    items: Annotated[int | None, typer.Option(min=2, help="Items per client; by default as the model needs.")] = None,
    repeats: Repeats = 3,
) -> Result:
    """Measure models of one's own (TorchTask): all clients in one computation against a plain loop over them.

    Before it stacks a model, turnout checks that both ways train the same weights.

    Example: python -m benchmarks own-models --device cuda --clients 32
    """
    kind = torch_device(device)
    from benchmarks.own_models import CASES, compare_own_model

    counts = clients or ([8] if kind == "cpu" else [8, 32, 64])
    rows = []
    for case in CASES:
        held = items or (case.cpu_items if kind == "cpu" else case.gpu_items)
        if held and case.name in (models or [case.name]):
            announce(case.name)
            rows += [compare_own_model(case, device, count, held, repeats) for count in counts]
    return Result(f"One round of training, {device}", rows)


def noise(dataset: str) -> Dataset:
    """Returns random images with the shape and the classes of the dataset: their content does not change the time."""
    source, rng = find_source(dataset), np.random.default_rng(0)
    images = rng.integers(0, source.brightest + 1, (ITEMS, *SHAPES[dataset]), dtype=np.uint8)
    labels = rng.integers(0, len(source.classes), ITEMS, dtype=np.uint8)
    return Dataset(dataset, source.classes, images, labels, images[:10], labels[:10], brightest=source.brightest)
