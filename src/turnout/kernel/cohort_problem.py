"""The optimisation problem behind a selection, for policies that solve one."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, exact_rate
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import EMPTY_COHORT, SolvedCohort, cohort_of_times
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.pace.prices import PaceOutlook

NEAR = 4096  # rounds that are tested one by one


@dataclass(frozen=True, slots=True, eq=False)
class PriceTerms:
    """What the price of each client's turn consists of, if the values of turns are prices (FairPace).

    Attributes:
        usual: The usual time of each client, in seconds.
        priced: The time of which its price is a share: longer than usual for a client that is faster now.
        advantage: The weight of the time by which a client is faster now.
        behind: How many turns each client is behind, this round's accrual included.
        allowed: How many turns it may be behind.
        least_allowed: The lower limit of `allowed` in the numerator of a price.
        sharers: The number of clients among which the cost of a slow round is divided; it divides `priced`.
        rooms: The turns that each client may still fall behind, as prices count them: new clients have more.
        head_start: The turns that a price counts in addition to these.
        values: What the signal of each client adds to its price, in seconds; None if none counts.
        signal: The name of that signal.
        outlook: How slack and price of each client develop if it waits.
    """

    usual: FloatArray
    priced: FloatArray
    advantage: float
    behind: FloatArray
    allowed: FloatArray
    least_allowed: float
    sharers: float
    rooms: FloatArray
    head_start: float
    values: FloatArray | None
    signal: str
    outlook: PaceOutlook


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
        order: Integers that order the clients as their values do, but more finely; None if values have no finer order.
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
    order: IntArray | None = None
    urgent: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    floor: float = 0.0
    prices: PriceTerms | None = None

    @property
    def first(self) -> IntArray:
        """The urgent clients that are selected, the most urgent first."""
        return self.urgent[: self.size]

    def total_value(self, rows: tuple[int, ...]) -> float:
        """Returns what turns of these clients are worth together."""
        total = sum(self.values.units[list(rows)].tolist()) + self.values.credit * len(rows)
        return total / self.values.units_per_turn if rows else 0.0

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
            urgent=self.urgent[:0],
            floor=max(self.floor, float(self.times[self.first].max(initial=0.0))),
        )

    def solve(self) -> SolvedCohort:
        """Returns the optimal cohort."""
        if not len(self.urgent):
            return cohort_of_times(
                self.times,
                self.values,
                self.size,
                self.speed_weight,
                self.available,
                floor=self.floor,
                order=self.order,
            )
        contested = self.contested()
        others = contested.solve() if contested.size else EMPTY_COHORT
        rows = np.sort(np.concatenate([self.first, others.rows]))
        if len(others.rows):
            threshold, objective = max(others.threshold, contested.floor), others.objective
        else:
            threshold, objective = contested.floor, contested.floor * self.speed_weight
        return SolvedCohort(rows, self.times[rows], threshold, objective, others.considered)

    def rounds_until(self, row: int, value: Fraction | None) -> tuple[int | None, str]:
        """Returns in how many rounds a turn of this client is worth `value`, or None and the reason.

        The client must be available in each of these rounds and not be selected, and nothing else may change. A client
        whose turn has a price can also become urgent and come before the others; with None, only that counts.
        """
        if self.irregular_growth:
            return None, self.irregular_growth
        if self.debts is None:
            return None, "the policy guarantees nothing"
        rate = exact_rate(float(self.debts.guaranteed_rates[row]))
        if rate == 0:
            return None, "its guaranteed rate is 0, so its debt does not grow"
        if self.prices is not None:
            return self._rounds_until_price(self.prices.outlook, row, value), ""
        if value is None:
            return None, "no debt would be large enough"
        own = Fraction(int(self.values.units[row]) + self.values.credit) / Fraction(self.values.units_per_turn)
        missing = value - own
        if self.debts.max_owed is not None:
            cap = Fraction(math.floor(Fraction(self.debts.max_owed) * self.debts.units_per_turn))
            cap /= self.debts.units_per_turn
            owed = self.debts.owed_exactly()
            if Fraction(int(owed.units[row]) + owed.credit, self.debts.units_per_turn) + missing > cap:
                return None, f"its debt is limited to {float(cap):g} {'turn' if cap == 1 else 'turns'} by max_owed"
        return max(math.ceil(missing / rate), 0), ""

    def _rounds_until_price(self, outlook: PaceOutlook, row: int, value: Fraction | None) -> int:
        """Returns the rounds after which the price is reached, or the client is urgent and gets one of the places."""
        others = self.urgent[self.urgent != row][: self.size]
        # The slack below which an urgent client displaces another one; any is enough if there are places left.
        limit, faster = 0.0, True
        if len(others) == self.size:
            last = int(others[-1])
            limit = float(outlook.pace.slack(np.array([last]))[0])
            faster = (float(self.times[row]), row) < (float(self.times[last]), last)
        units = float(self.values.units_per_turn)

        def is_selected(waited: IntArray) -> BoolArray:
            slack, prices = outlook.after(row, waited)
            selected: BoolArray = (slack <= 0) & ((slack <= limit) if faster else (slack < limit))
            if value is not None:
                selected |= (slack > 0) & (np.rint(prices * units) >= float(value * Fraction(units)))
            return selected

        # At first the slack of a client that was often absent can grow, because a longer presence allows it more.
        near = np.flatnonzero(is_selected(np.arange(1, NEAR + 1)))
        if len(near):
            return int(near[0]) + 1
        low, high = NEAR, 2 * NEAR
        while not is_selected(np.array([high]))[0]:
            low, high = high, 2 * high
        between = range(low + 1, high)
        return low + 1 + bisect_left(between, True, key=lambda waited: bool(is_selected(np.array([waited]))[0]))
