"""Measures one run of RBCS-F against the paper's algorithms in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.literal_rbcsf import literal_run
from turnout.bench.sweeping import ROUNDS
from turnout.bench.timing import in_turns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import play_plan


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Median wall-clock seconds of one run of RBCS-F in the paper's world."""

    rounds: int
    run_seconds: float
    literal_seconds: float

    @property
    def literal_ratio(self) -> float:
        """Time of the literal implementation, divided by the time of turnout."""
        return self.literal_seconds / self.run_seconds


def measure_run(*, rounds: int = ROUNDS, repeats: int = 3) -> RunFigures:
    """Plays both implementations in turns and compares their cohorts."""
    cohorts: dict[str, list[list[int]]] = {}

    def package() -> None:
        columns = play_plan(RunPlan("rbcsf", rounds))
        cohorts["package"] = [cohort.tolist() for cohort in np.split(columns.chosen, columns.starts[1:-1])]

    def literal() -> None:
        cohorts["literal"] = literal_run(rounds)

    tasks: list[Callable[[], object]] = [package, literal]
    run_seconds, literal_seconds = in_turns(tasks, repeats)
    if cohorts["package"] != cohorts["literal"]:
        raise AssertionError("the literal RBCS-F selected other cohorts: one of the two implementations is wrong")
    return RunFigures(rounds, run_seconds, literal_seconds)
