"""What the paper's comparison costs: six policies, 500 rounds, 20 seeds, beside a literal reading of one run."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.bench.literal import literal_run
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import play_plan, sweep
from turnout.store import RunStore

ROUNDS = 500


@dataclass(frozen=True, slots=True)
class SweepFigures:
    """Wall seconds of the sweep, and of one RBCS-F run, ours and the literal one."""

    runs: int
    workers: int
    sweep_seconds: float
    run_seconds: float
    literal_seconds: float

    @property
    def literal_ratio(self) -> float:
        """How many times longer the literal run takes."""
        return self.literal_seconds / self.run_seconds


def paper_sweep(seeds: int) -> list[RunPlan]:
    """Weights 1, 5, 20 and 50, random and FedCS(3)."""
    contenders = [("rbcsf", {"speed_weight": float(weight)}) for weight in (1, 5, 20, 50)]
    others: list[tuple[str, dict[str, float]]] = [("random", {}), ("fedcs", {"deadline": 3.0})]
    return [RunPlan(name, ROUNDS, seed, settings) for name, settings in [*contenders, *others] for seed in range(seeds)]


def measure_sweep(*, seeds: int = 20, workers: int = 2) -> SweepFigures:
    """Everything a user waits for: the worker processes, the runs, the store."""
    plans = paper_sweep(seeds)
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        start = time.perf_counter()
        sweep(plans, store, workers=workers)
        swept = time.perf_counter() - start
    start = time.perf_counter()
    columns = play_plan(RunPlan("rbcsf", ROUNDS))
    ours = time.perf_counter() - start
    start = time.perf_counter()
    literal = literal_run(ROUNDS)
    slowly = time.perf_counter() - start
    if [cohort.tolist() for cohort in np.split(columns.chosen, columns.starts[1:-1])] != literal:
        raise AssertionError("the literal reading of the paper chose otherwise: one of the two is wrong")
    return SweepFigures(len(plans), workers, swept, ours, slowly)
