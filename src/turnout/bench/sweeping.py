"""Measures the paper's comparison: six policies, 500 rounds and 20 seeds, swept into a store."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import play_plan, sweep

ROUNDS = 500
MAX_SECONDS = 5.0  # target for the whole sweep on two cores


@dataclass(frozen=True, slots=True)
class SweepFigures:
    """Wall-clock seconds of the sweep, and of the same runs played one after the other without a store.

    `run_seconds` is one run of RBCS-F. `single_seconds` extrapolates from one run of each policy to all seeds.
    """

    runs: int
    workers: int
    sweep_seconds: float
    run_seconds: float
    single_seconds: float

    @property
    def runs_per_second(self) -> float:
        """Runs of 500 rounds per second of the sweep."""
        return self.runs / self.sweep_seconds

    @property
    def speedup(self) -> float:
        """Time of all runs played one after the other, divided by the time of the sweep."""
        return self.single_seconds / self.sweep_seconds

    @property
    def met(self) -> bool:
        """Whether the sweep is within its target."""
        return self.sweep_seconds <= MAX_SECONDS


def paper_sweep(seeds: int) -> list[RunPlan]:
    """Returns the plans of RBCS-F with speed weights 1, 5, 20 and 50, of random selection and of FedCS(3)."""
    policies: list[tuple[str, dict[str, float]]] = [
        *(("rbcsf", {"speed_weight": float(weight)}) for weight in (1, 5, 20, 50)),
        ("random", {}),
        ("fedcs", {"deadline": 3.0}),
    ]
    return [RunPlan(name, ROUNDS, seed, settings) for name, settings in policies for seed in range(seeds)]


def measure_sweep(*, seeds: int = 20, workers: int = 2) -> SweepFigures:
    """Measures the whole sweep (worker processes, runs and store), then single runs in this process."""
    plans = paper_sweep(seeds)
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        start = time.perf_counter()
        sweep(plans, store, workers=workers)
        sweep_seconds = time.perf_counter() - start
    run_seconds = _seconds_of(RunPlan("rbcsf", ROUNDS))
    single_seconds = seeds * sum(_seconds_of(plan) for plan in paper_sweep(1))
    return SweepFigures(len(plans), workers, sweep_seconds, run_seconds, single_seconds)


def _seconds_of(plan: RunPlan) -> float:
    start = time.perf_counter()
    play_plan(plan)
    return time.perf_counter() - start
