"""The base class of experiments: plans to play, findings to compute, a figure to draw.

Drawing never plays a run, and playing never draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.studies.framework.claims import Claim, Group
from turnout.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plans = Mapping[str, list[RunPlan]]
#: Policies with their settings, by label.
Contenders = Mapping[str, tuple[str, Mapping[str, Any]]]


def plans_for(contenders: Contenders, seeds: int, rounds: int, *, first_seed: int = 0, **options: Any) -> Plans:
    """Returns the plans of each contender, one per seed; `options` are further arguments of `RunPlan`."""
    return {
        label: [
            RunPlan(policy, rounds, seed, settings, label=label, **options)
            for seed in range(first_seed, first_seed + seeds)
        ]
        for label, (policy, settings) in contenders.items()
    }


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of an experiment: claims with their verdicts, and the data of its figure as named tables."""

    claims: list[Claim]
    tables: dict[str, Table]


class Runs:
    """The finished runs of an experiment, which are read from the store one at a time."""

    def __init__(self, plans: Plans, store: RunStore) -> None:
        self._plans, self._store = plans, store

    @property
    def labels(self) -> list[str]:
        """The labels of the contenders."""
        return list(self._plans)

    def plans_of(self, label: str) -> list[RunPlan]:
        """Returns the plans of a contender, one per seed."""
        return self._plans[label]

    def of(self, label: str) -> Iterator[RoundColumns]:
        """Yields the runs of a contender, one per seed."""
        for plan in self._plans[label]:
            run = self._store.find(plan.key)
            if run is None or not run.finished:
                raise SettingError(f"the run of {plan.name}, seed {plan.seed}, is not in the store: play it first")
            yield self._store.columns(run.id)

    def each(self, label: str, measure: Callable[[RoundColumns], float]) -> Group:
        """Returns one measurement per seed."""
        return Group(label, np.array([measure(columns) for columns in self.of(label)]))

    def curves(self, label: str, measure: Callable[[RoundColumns], FloatArray]) -> FloatArray:
        """Returns one curve per seed, as rows."""
        return np.stack([measure(columns) for columns in self.of(label)])


class Experiment(ABC):
    """A figure with its claims.

    `rounds` and `seeds` are the default numbers, `first_seed` is the first of the seeds; `keep` is that of the plans:
    long runs store only choices and times.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    contenders: ClassVar[Contenders]
    rounds: ClassVar[int] = 500
    seeds: ClassVar[int] = 20
    first_seed: ClassVar[int] = 0
    keep: ClassVar[Literal["all", "choices"]] = "all"

    def on(self, datasets: Sequence[str]) -> Experiment:
        """Returns the same experiment on other datasets; most experiments train no model and reject this."""
        raise SettingError(f"{self.name} trains no model: it cannot be played on {', '.join(datasets)}")

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns the plans of each contender, one per seed; `rounds` replaces the default number of rounds."""
        return plans_for(self.contenders, seeds, rounds or self.rounds, keep=self.keep)

    @abstractmethod
    def findings(self, runs: Runs) -> Findings:
        """Computes claims and tables from finished runs."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draws the figure from the tables."""
