"""Policies that are told the truth: what could be had if nothing had to be learned."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, smallest
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import DEFAULT_RATE, Accrual, OwedTurns, Rate
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.guaranteed import GuaranteedPolicy


class Fastest(SelectionPolicy):
    """The available clients with the shortest true expected times; fair to nobody."""

    name = "fastest"
    requires_expected_times = True

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)

    def ask(self, offer: RoundOffer) -> Selection:
        """Choose the fastest, of equals the lower rows."""
        self.check_offer(offer)
        times = self.true_times(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(times[rows], self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"expected": times[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Nothing to learn."""
        self.check_report(report)


class FairOracle(GuaranteedPolicy):
    """RBCS-F with the true expected times in place of learned ones.

    With a large `speed_weight` and over a long run it approaches the best fair policy from above; the best itself
    has no closed form.
    """

    name = "fair-oracle"
    requires_expected_times = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        speed_weight: float = 1000.0,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        paid: Literal["chosen", "contributed"] = "chosen",
        availability: float | npt.ArrayLike | None = None,
        allow_infeasible: bool = False,
    ) -> None:
        super().__init__(
            clients,
            cohort_size=cohort_size,
            guaranteed_rate=guaranteed_rate,
            speed_weight=speed_weight,
            accrual=accrual,
            max_owed=max_owed,
            paid=paid,
            availability=availability,
            allow_infeasible=allow_infeasible,
        )

    def _cohort(self, offer: RoundOffer, debts: OwedTurns, weight: float) -> Cohort:
        times = np.ascontiguousarray(self.true_times(offer))
        return cohort_of_times(times, debts, self.cohort_size, weight, offer.available)
