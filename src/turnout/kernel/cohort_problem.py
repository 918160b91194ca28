"""The optimisation problem behind a selection, for policies that solve one."""

from __future__ import annotations

from typing import NamedTuple

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import FairnessQueues, OwedTurns


class CohortProblem(NamedTuple):
    """Minimise speed_weight · (slowest time) − (sum of the values of a turn) over cohorts of `size` clients.

    Attributes:
        times: The time of each client, in seconds, as the policy estimates it.
        values: What a turn of each client is worth, in turns.
        size: The number of clients to select.
        speed_weight: The number of turns that one second is worth.
        available: The clients that can be selected.
        debts: The queues from which the values come; None if the policy has none.
        values_are_debts: Whether a client's value is exactly what it is owed.
        irregular_growth: Why values do not grow by the guaranteed rate in each round; empty if they do.
    """

    times: FloatArray
    values: OwedTurns
    size: int
    speed_weight: float
    available: BoolArray
    debts: FairnessQueues | None = None
    values_are_debts: bool = True
    irregular_growth: str = ""

    def solve(self) -> Cohort:
        """Returns the optimal cohort."""
        return cohort_of_times(self.times, self.values, self.size, self.speed_weight, self.available)
