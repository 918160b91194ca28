"""Policies that know the true expected times: what a policy could reach if nothing had to be learned."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from turnout.kernel.arrays import smallest
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import SolvedCohort
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import CohortPolicy
from turnout.policies.guaranteed import WeightedPolicy


class Fastest(CohortPolicy):
    """Selects the available clients with the shortest expected times, without regard to fairness.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
    """

    name = "fastest"
    fills_slots = True
    requires_expected_times = True

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients, cohort_size=cohort_size)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the fastest clients; among equals, the lower rows."""
        self.check_offer(offer)
        times = self.expected_times(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(times[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"expected": times[chosen]})


class FairOracle(WeightedPolicy):
    """RBCS-F with the true expected times instead of learned ones.

    With a large `speed_weight` and over a long run its mean round is a limit that the best fair policy, which has no
    closed form, does not exceed.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        speed_weight: How many owed turns one second of round time is worth.
        **settings: The terms of the guarantee; see `Guarantee`.
    """

    name = "fair-oracle"
    fills_slots = True
    requires_expected_times = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        speed_weight: float = 1000.0,
        **settings: Unpack[GuaranteeSettings],
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, speed_weight=speed_weight, **settings)

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem:
        """Returns the problem P4 of the paper with the true expected times."""
        size = self.places(offer)
        return self._problem(offer, size, *self.objective_terms(self.debts.owed_exactly(), offer.round, size))

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:
        return self._problem(offer, size, values, weight).solve()

    def _problem(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> CohortProblem:
        times = np.ascontiguousarray(self.expected_times(offer))
        return CohortProblem(times, values, size, float(weight), offer.available, self.debts)
