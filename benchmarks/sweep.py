"""Measures the paper's comparison of policies."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness import Result, Target, seconds_of
from turnout.lab import RunPlan, RunStore
from turnout.lab import sweep as run_sweep

MAX_SECONDS = 5.0  # target for the whole sweep on two cores
#: The policies of the paper's comparison.
POLICIES: list[tuple[str, dict[str, float]]] = [
    *(("rbcsf", {"speed_weight": float(weight)}) for weight in (1, 5, 20, 50)),
    ("random", {}),
    ("fedcs", {"deadline": 3.0}),
]


def sweep(
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per policy.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds of each run.")] = 500,
) -> Result:
    """Measure the paper's comparison: 6 policies, 500 rounds, 20 seeds, with worker processes and a store.

    Example: python -m benchmarks sweep --workers 4
    """
    plans = [RunPlan(name, rounds, seed, settings) for name, settings in POLICIES for seed in range(seeds)]
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        seconds = seconds_of(lambda: run_sweep(plans, store, workers=workers))
    return Result(
        f"{len(plans)} runs of {rounds} rounds with {workers} worker processes",
        figures=[("runs", len(plans) / seconds, "per second")],
        targets=[Target("the whole sweep, seconds", seconds, MAX_SECONDS)],
    )
