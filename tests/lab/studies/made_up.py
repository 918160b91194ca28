"""Played and made-up runs, and groups for verdicts that hold, fail and stay undecided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab import RoundColumns, RunStore
from turnout.lab.studies.framework.claims import Group
from turnout.lab.studies.framework.experiment import Experiment, Result, compute_results, plans_of
from turnout.lab.training.batched import play_plans

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided"
#: Differences between seeds that cancel in paired comparisons.
NOISE = np.array([0.0, 0.3, -0.2, 0.1])


def group(label: str, mean: float, scale: float = 0.01) -> Group:
    """Returns a group of four seeds around a mean; groups of one claim differ by their means on every seed."""
    return Group(label, mean + scale * NOISE)


def columns(cohorts: Sequence[Sequence[int]], times: Sequence[float], clients: int, **more: Any) -> RoundColumns:
    """Returns rounds with these cohorts, each of which lasts the given time in seconds."""
    sizes = [len(cohort) for cohort in cohorts]
    return RoundColumns(
        clients=clients,
        rounds=np.arange(1, len(cohorts) + 1),
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        chosen=np.array([client for cohort in cohorts for client in cohort], dtype=np.int64),
        contexts=np.empty((sum(sizes), 0)),
        exchange_times=np.repeat(times, sizes),
        **more,
    )


def reproduce(
    experiments: Sequence[Experiment], store: RunStore, *, seeds: int, rounds: int, **options: Any
) -> list[Result]:
    """Plays the runs that a store lacks, and computes the findings."""
    play_plans(plans_of(experiments, seeds, rounds), store, **options)
    return compute_results(experiments, store, seeds=seeds, rounds=rounds)


class MadeUpRuns:
    """Stands for `Runs`: the same made-up run for every seed of a contender."""

    def __init__(self, runs: Mapping[str, RoundColumns], seeds: int = 3) -> None:
        self.runs, self.labels, self.seeds = runs, list(runs), seeds

    def of(self, label: str) -> Iterator[RoundColumns]:
        return iter([self.runs[label]] * self.seeds)

    def each(self, label: str, measure: Any) -> Group:
        return Group(label, np.array([measure(run) for run in self.of(label)]))

    def curves(self, label: str, measure: Any) -> FloatArray:
        return np.stack([measure(run) for run in self.of(label)])
