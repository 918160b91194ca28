"""The optimisation problem behind a selection, for policies that solve one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.cohort import EMPTY_COHORT, Cohort, cohort_of_times
from turnout.kernel.fairness import FairnessQueues, OwedTurns, exact_rate


def _no_rows() -> IntArray:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PriceTerms:
    """What the price of each client's turn consists of, if the values of turns are prices (FairPace).

    Attributes:
        usual: The usual time of each client, in seconds.
        behind: How many turns each client is behind, this round's accrual included.
        allowed: How many turns it may be behind.
        least_allowed: The lower limit of `allowed` in the numerator of a price.
        sharers: The number of clients among which the cost of a slow round is divided; it divides the usual time.
    """

    usual: FloatArray
    behind: FloatArray
    allowed: FloatArray
    least_allowed: float
    sharers: float


@dataclass(frozen=True, slots=True, eq=False)
class CohortProblem:
    """Minimise speed_weight · (slowest time) − (sum of the values of a turn) over cohorts of `size` clients.

    Attributes:
        times: The time of each client, in seconds, as the policy estimates it.
        values: What a turn of each client is worth, in turns or in seconds.
        size: The number of clients to select.
        speed_weight: The worth of one second: in turns, or 1 if values are in seconds.
        available: The clients that can be selected.
        debts: The queues from which the values come; None if the policy has none.
        values_are_debts: Whether a client's value is exactly what it is owed.
        irregular_growth: Why values do not grow by the guaranteed rate in each round; empty if they do.
        urgent: The available clients that are selected before all others, the most urgent first.
        floor: The round lasts at least this many seconds.
        prices: The terms of the prices, if values are prices in seconds; None if values are turns.
    """

    times: FloatArray
    values: OwedTurns
    size: int
    speed_weight: float
    available: BoolArray
    debts: FairnessQueues | None = None
    values_are_debts: bool = True
    irregular_growth: str = ""
    urgent: IntArray = field(default_factory=_no_rows)
    floor: float = 0.0
    prices: PriceTerms | None = None

    @property
    def unit(self) -> Literal["turns", "seconds"]:
        """The unit of the values and of the objective."""
        return "turns" if self.prices is None else "seconds"

    @property
    def first(self) -> IntArray:
        """The urgent clients that are selected, the most urgent first."""
        return self.urgent[: self.size]

    def contested(self) -> CohortProblem:
        """Returns the problem of the places that urgent clients leave to the others."""
        if not len(self.urgent):
            return self
        available = self.available.copy()
        available[self.urgent] = False
        return replace(
            self,
            size=self.size - len(self.first),
            available=available,
            urgent=_no_rows(),
            floor=max(self.floor, float(self.times[self.first].max(initial=0.0))),
        )

    def solve(self) -> Cohort:
        """Returns the optimal cohort."""
        if not len(self.urgent):
            return cohort_of_times(
                self.times, self.values, self.size, self.speed_weight, self.available, floor=self.floor
            )
        contested = self.contested()
        others = contested.solve() if contested.size else EMPTY_COHORT
        rows = np.sort(np.concatenate([self.first, others.rows]))
        if len(others.rows):
            threshold, objective = max(others.threshold, contested.floor), others.objective
        else:
            threshold, objective = contested.floor, contested.floor * self.speed_weight
        return Cohort(rows, self.times[rows], threshold, objective, others.considered)

    def rounds_until(self, row: int, value: Fraction) -> tuple[int | None, str]:
        """Returns in how many rounds a turn of this client is worth `value`, or None and the reason.

        The client must be available in each of these rounds and not be selected, and nothing else may change. A client
        whose turn has a price becomes urgent at the latest when it is as far behind as it may be.
        """
        if self.irregular_growth:
            return None, self.irregular_growth
        if self.debts is None:
            return None, "the policy guarantees nothing"
        rate = exact_rate(float(self.debts.guaranteed_rates[row]))
        if rate == 0:
            return None, "its guaranteed rate is 0, so its debt does not grow"
        if self.prices is not None:
            return _rounds_until_price(self.prices, row, float(value), float(rate)), ""
        own = Fraction(int(self.values.units[row]) + self.values.credit) / Fraction(self.values.units_per_turn)
        missing = value - own
        if self.debts.max_owed is not None:
            cap = Fraction(math.floor(Fraction(self.debts.max_owed) * self.debts.units_per_turn))
            cap /= self.debts.units_per_turn
            owed = self.debts.owed_exactly()
            if Fraction(int(owed.units[row]) + owed.credit, self.debts.units_per_turn) + missing > cap:
                return None, f"its debt is limited to {float(cap):g} {'turn' if cap == 1 else 'turns'} by max_owed"
        return max(math.ceil(missing / rate), 0), ""


def _rounds_until_price(terms: PriceTerms, row: int, price: float, rate: float) -> int:
    """Returns the rounds after which the price is reached, or the client is urgent."""
    allowed, behind = float(terms.allowed[row]), float(terms.behind[row])
    scale = float(terms.usual[row]) / terms.sharers * max(allowed, terms.least_allowed)
    slack = scale / price if price > 0 else 0.0
    return max(math.ceil((allowed - behind - slack) / rate - 1e-9), 0)
