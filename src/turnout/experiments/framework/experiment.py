"""What an experiment is: plans that are played, findings that are computed, a figure that is drawn.

Drawing never runs anything; running never draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.experiments.framework.claims import Claim, Group
from turnout.kernel.arrays import FloatArray
from turnout.simulator.plans import RunPlan
from turnout.store import RoundColumns, RunStore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Plans = Mapping[str, list[RunPlan]]
Table = Mapping[str, npt.ArrayLike]


@dataclass(frozen=True, slots=True)
class Findings:
    """What an experiment found: claims with their verdicts, and the data of its figure, one table a name."""

    claims: list[Claim]
    tables: dict[str, Table]


class Runs:
    """The finished runs of an experiment, read from the store one at a time."""

    def __init__(self, plans: Plans, store: RunStore) -> None:
        self._plans, self._store = plans, store

    @property
    def labels(self) -> list[str]:
        """The contenders."""
        return list(self._plans)

    def plans_of(self, label: str) -> list[RunPlan]:
        """The plans of one contender, one a seed."""
        return self._plans[label]

    def of(self, label: str) -> Iterator[RoundColumns]:
        """The runs of one contender, one a seed."""
        for plan in self._plans[label]:
            found = self._store.find(plan.key)
            if found is None or not found.finished:
                raise SettingError(f"the run of {plan.name}, seed {plan.seed}, is not in the store: play it first")
            yield self._store.columns(found.id)

    def each(self, label: str, measure: Callable[[RoundColumns], float]) -> Group:
        """One number a seed."""
        return Group(label, np.array([measure(columns) for columns in self.of(label)]))

    def curves(self, label: str, measure: Callable[[RoundColumns], FloatArray]) -> FloatArray:
        """One curve a seed, as rows."""
        return np.stack([measure(columns) for columns in self.of(label)])


class Experiment(ABC):
    """One figure of the paper, or one of ours; `seeds` is how many it is played with unless somebody says otherwise."""

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    seeds: ClassVar[int] = 20

    def on(self, datasets: Sequence[str]) -> Experiment:
        """The same experiment with models trained on these datasets; most experiments train none."""
        raise SettingError(f"{self.name} trains no model: it cannot be played on {', '.join(datasets)}")

    @abstractmethod
    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """The runs it needs, by contender, one a seed; `rounds` in place of its own number, for a quick look."""

    @abstractmethod
    def findings(self, runs: Runs) -> Findings:
        """Compute claims and tables from finished runs."""

    @abstractmethod
    def draw(self, findings: Findings) -> Figure:
        """Draw the figure from the tables."""
